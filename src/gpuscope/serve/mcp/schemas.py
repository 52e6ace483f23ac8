"""JSON Schema of the TypedDicts that the API answers with.

A field that is `NotRequired` may be left out; other fields may come with a later version, so that more
properties are allowed.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Final, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

Schema = dict[str, Any]

_PRIMITIVES: Final[dict[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
}


def to_schema(described: Any) -> Schema:
    """Raises TypeError for a type that no answer has."""
    if described in _PRIMITIVES:
        return dict(_PRIMITIVES[described])
    if is_typeddict(described):
        return _object(described)
    origin, arguments = get_origin(described), get_args(described)
    if origin is NotRequired:
        return to_schema(arguments[0])
    if origin is list:
        return {"type": "array", "items": to_schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": to_schema(arguments[1])}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [to_schema(argument) for argument in arguments]}
    raise TypeError(f"no JSON schema for {described!r}")


def _object(described: Any) -> Schema:
    fields = get_type_hints(described, include_extras=True)
    # Not `__required_keys__`: it does not see NotRequired in annotations that are kept as text.
    required = [name for name, field in fields.items() if get_origin(field) is not NotRequired]
    return {
        "type": "object",
        "properties": {name: to_schema(field) for name, field in fields.items()},
        "required": required,
    }
