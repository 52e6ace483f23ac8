"""Go's value types as templates see them, on Python's types; and the errors of a template.

bool, int, float, complex, str and None stand for bool, int, float64, complex128, string and nil; a dict is a
`map[string]any`, a list a `[]any`. Classes here add the types that print or compare differently. A template
reaches only names in FIELDS and METHODS of a `GoStruct`: no Python attribute is reachable by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gpuscope.base.errors import UsageError

GoValue = Any
"""Whatever a template can hold; typed `Any` because a template decides types when it runs."""
Kind = str
"""bool, int, float64, complex, string, map, slice, struct, func, or invalid for nil."""
_PLAIN_TYPES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float64",
    complex: "complex128",
    str: "string",
    dict: "map[string]interface {}",
    list: "[]interface {}",
    type(None): "<nil>",
}
ASSIGNABLE: dict[str, tuple[str, ...]] = {
    "[]string": ("[]string", "template.Strings"),
    "time.Time": ("time.Time", "*time.Time"),
    "time.Duration": ("time.Duration", "*time.Duration"),
}
"""From parameter type to the value types that it accepts; other parameters accept their own type."""
CAN_BE_NIL = ("any", "[]string", "[]interface {}", "template.queryResult", "*template.sample")


class TemplateError(UsageError):
    """`message` is Go's whole text; line and column (from 1, in characters) are 0 where no place is known."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


class FunctionFailed(Exception):
    """A template function returned an error; the message is Go's."""


@dataclass(frozen=True, slots=True)
class GoFunction:
    """A function or method with Go's parameter types, which decide what a literal may be."""

    parameters: tuple[str, ...]
    call: Callable[..., GoValue]
    is_variadic: bool = False
    """The last parameter takes any number of values."""


class GoStruct:
    """A struct, or a pointer to one: fields and methods by their Go names."""

    __slots__ = ()
    GO_TYPE: ClassVar[str] = "struct {}"
    FIELDS: ClassVar[Mapping[str, str]] = {}
    """From Go name to Python attribute."""

    def go_methods(self) -> Mapping[str, GoFunction]:
        return {}

    def go_fields(self) -> list[GoValue]:
        return [getattr(self, attribute) for attribute in self.FIELDS.values()]


class Stringer:
    """A type with Go's `String` method: `print` uses it."""

    __slots__ = ()

    def go_string(self) -> str:
        raise NotImplementedError


class Int64(int):
    GO_TYPE = "int64"


class NamedInt(int, Stringer):
    """`time.Month` or `time.Weekday`: a number that prints as a name."""

    GO_TYPE = "int"
    NAMES: ClassVar[tuple[str, ...]] = ()
    FIRST: ClassVar[int] = 0

    def go_string(self) -> str:
        return self.NAMES[self - self.FIRST]


class Month(NamedInt):
    GO_TYPE = "time.Month"
    FIRST = 1
    NAMES = (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
        "November", "December",
    )  # fmt: skip


class Weekday(NamedInt):
    GO_TYPE = "time.Weekday"
    NAMES = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


class SafeHtml(str):
    """Text that the author of a template declares to be HTML."""

    GO_TYPE = "template.HTML"


class SafeUrl(str):
    """Text that the author of a template declares to be a URL."""

    GO_TYPE = "template.URL"


class StringMap(dict[str, str]):
    """`map[string]string`: a missing key is the empty string."""

    GO_TYPE = "map[string]string"


class StringList(list[str]):
    GO_TYPE = "[]string"


def kind_of(value: GoValue) -> Kind:
    kind = _KINDS.get(type(value))
    if kind is None:
        subclass = type(value)
        kind = next((kind for known, kind in _KINDS.items() if issubclass(subclass, known)), "struct")
        _KINDS[subclass] = kind
    return kind


_KINDS: dict[type, Kind] = {  # subclasses are added when they are met
    type(None): "invalid",
    bool: "bool",
    int: "int",
    float: "float64",
    complex: "complex",
    str: "string",
    dict: "map",
    list: "slice",
    GoFunction: "func",
}


def go_type(value: GoValue) -> str:
    plain = _PLAIN_TYPES.get(type(value))
    return plain if plain is not None else str(getattr(value, "GO_TYPE", "struct {}"))


def is_true(value: GoValue) -> bool:
    """What `if`, `with`, `and`, `or` and `not` go by: false are zero, empty and nil."""
    kind = kind_of(value)
    if kind == "float64" or kind == "int" or kind == "complex":
        return bool(value != 0)
    if kind in ("string", "map", "slice"):
        return len(value) > 0
    return value is not None and value is not False


def methods_of(value: GoValue) -> Mapping[str, GoFunction]:
    methods = getattr(value, "go_methods", None)
    return methods() if methods is not None else {}


def is_assignable(value: GoValue, parameter: str) -> bool:
    return parameter == "any" or go_type(value) in ASSIGNABLE.get(parameter, (parameter,))


def zero_of(parameter: str) -> GoValue:
    """The value of a nil argument."""
    return StringList() if parameter == "[]string" else [] if parameter == "[]interface {}" else None


def element_zero(container: dict[str, GoValue]) -> GoValue:
    """What a missing key gives (`missingkey=zero`)."""
    return "" if isinstance(container, StringMap) else None
