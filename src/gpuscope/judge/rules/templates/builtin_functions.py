"""Functions that every Go template has: comparison, `index`, `len`, `printf`, escaping of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote_plus

from gpuscope.judge.rules.templates.go_format import format_print, format_printf, format_println
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoFunction,
    GoValue,
    element_zero,
    go_type,
    is_true,
    kind_of,
)

_BAD_TYPE = "invalid type for comparison"
_HTML = {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
_JS = {
    "\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D",
}  # fmt: skip


def _kind_for_comparison(value: GoValue) -> str:
    kind = kind_of(value)
    if kind in ("bool", "int", "float64", "complex", "string"):
        return kind
    # A Duration is an integer; everything else has no order.
    return "int" if go_type(value) == "time.Duration" else ""


def _plain(value: GoValue) -> GoValue:
    return getattr(value, "nanoseconds", value) if go_type(value) == "time.Duration" else value


def equals(first: GoValue, *others: GoValue) -> bool:
    if not others:
        raise FunctionFailed("missing argument for comparison")
    return any(_equals_one(first, other) for other in others)


def _equals_one(left: GoValue, right: GoValue) -> bool:
    kinds = _kind_for_comparison(left), _kind_for_comparison(right)
    if kinds[0] != kinds[1]:
        if left is not None and right is not None:
            raise FunctionFailed(f"incompatible types for comparison: {go_type(left)} and {go_type(right)}")
        return False
    if kinds[0]:
        return bool(_plain(left) == _plain(right))
    if left is None or right is None:
        return left is right
    if kind_of(left) != kind_of(right) or kind_of(right) in ("map", "slice"):
        raise FunctionFailed(f"non-comparable type {format_print([right])}: {go_type(right)}")
    return bool(left == right)


def less(left: GoValue, right: GoValue) -> bool:
    kinds = _kind_for_comparison(left), _kind_for_comparison(right)
    if not kinds[0] or not kinds[1]:
        raise FunctionFailed(_BAD_TYPE)
    if kinds[0] != kinds[1]:
        raise FunctionFailed(f"incompatible types for comparison: {go_type(left)} and {go_type(right)}")
    if kinds[0] in ("bool", "complex"):
        raise FunctionFailed(_BAD_TYPE)
    return bool(_plain(left) < _plain(right))


def less_or_equal(left: GoValue, right: GoValue) -> bool:
    return less(left, right) or equals(left, right)


def _index_number(index: GoValue, length: int) -> int:
    if index is None:
        raise FunctionFailed("cannot index slice/array with nil")
    if kind_of(index) != "int":
        raise FunctionFailed(f"cannot index slice/array with type {go_type(index)}")
    if not 0 <= index <= length:
        raise FunctionFailed(f"index out of range: {index}")
    return int(index)


def index(item: GoValue, *indexes: GoValue) -> GoValue:
    if item is None:
        raise FunctionFailed("index of untyped nil")
    for index in indexes:
        if item is None:
            raise FunctionFailed("index of nil pointer")
        if isinstance(item, dict):
            if type(index) is not str:
                wrong = "value is nil; should be of type string" if index is None else ""
                raise FunctionFailed(wrong or f"value has type {go_type(index)}; should be string")
            item = item[index] if index in item else element_zero(item)
        elif isinstance(item, (str, list)):
            values = item.encode("utf-8", "replace") if isinstance(item, str) else item
            number = _index_number(index, len(values))
            if number == len(values):
                kind = "string" if isinstance(item, str) else "slice"
                raise FunctionFailed(f"reflect: {kind} index out of range")
            item = values[number]
        else:
            raise FunctionFailed(f"can't index item of type {go_type(item)}")
    return item


def slice_of(item: GoValue, *indexes: GoValue) -> GoValue:
    if item is None:
        raise FunctionFailed("slice of untyped nil")
    if len(indexes) > 3:
        raise FunctionFailed(f"too many slice indexes: {len(indexes)}")
    if not isinstance(item, (str, list)):
        raise FunctionFailed(f"can't slice item of type {go_type(item)}")
    if isinstance(item, str) and len(indexes) == 3:
        raise FunctionFailed("cannot 3-index slice a string")
    values = item.encode("utf-8", "replace") if isinstance(item, str) else item
    numbers = [_index_number(index, len(values)) for index in indexes]
    begin, end = (numbers[0] if numbers else 0), (numbers[1] if len(numbers) > 1 else len(values))
    for low, high in [(begin, end), *([(end, numbers[2])] if len(numbers) == 3 else [])]:
        if low > high:
            raise FunctionFailed(f"invalid slice index: {low} > {high}")
    part = values[begin:end]
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else type(item)(part)


def length(item: GoValue) -> int:
    if item is None:
        raise FunctionFailed("reflect: call of reflect.Value.Type on zero Value")
    if isinstance(item, str):
        return len(item.encode("utf-8", "replace"))
    if isinstance(item, (list, dict)):
        return len(item)
    raise FunctionFailed(f"len of type {go_type(item)}")


def as_text(values: tuple[GoValue, ...]) -> str:
    if len(values) == 1 and isinstance(values[0], str):
        return str(values[0])
    return format_print(["<no value>" if value is None else value for value in values])


def html_escape(*values: GoValue) -> str:
    return "".join(_HTML.get(character, character) for character in as_text(values))


def js_escape(*values: GoValue) -> str:
    parts = []
    for character in as_text(values):
        code = ord(character)
        if character in _JS:
            parts.append(_JS[character])
        elif code < 0x20:
            parts.append(f"\\u{code:04X}")
        else:
            parts.append(character if code < 0x80 or character.isprintable() else f"\\u{code:04X}")
    return "".join(parts)


def query_escape(text: str) -> str:
    """As Go's `url.QueryEscape`."""
    return quote_plus(text, safe="~", errors="replace")


def _call(function: GoValue, *values: GoValue) -> GoValue:
    if function is None:
        raise FunctionFailed("call of nil")
    raise FunctionFailed(f"non-function of type {go_type(function)}")


def builtin_functions(max_length: int) -> Mapping[str, GoFunction]:
    def many(call: Callable[..., GoValue], first: str = "any") -> GoFunction:
        return GoFunction((first, "any"), call, is_variadic=True)

    def all_of(call: Callable[..., GoValue]) -> GoFunction:
        return GoFunction(("any",), call, is_variadic=True)

    def two(call: Callable[[GoValue, GoValue], GoValue]) -> GoFunction:
        return GoFunction(("any", "any"), call)

    return {
        "and": many(lambda *values: None),  # evaluated by the executor, which stops at the first false
        "or": many(lambda *values: None),
        "not": GoFunction(("any",), lambda value: not is_true(value)),
        "eq": many(equals),
        "ne": two(lambda left, right: not equals(left, right)),
        "lt": two(less),
        "le": two(less_or_equal),
        "gt": two(lambda left, right: not less_or_equal(left, right)),
        "ge": two(lambda left, right: not less(left, right)),
        "index": many(index),
        "slice": many(slice_of),
        "len": GoFunction(("any",), length),
        "print": all_of(lambda *values: format_print(values, max_length)),
        "println": all_of(lambda *values: format_println(values, max_length)),
        "printf": many(lambda text, *values: format_printf(text, values, max_length), "string"),
        "html": all_of(html_escape),
        "js": all_of(js_escape),
        "urlquery": all_of(lambda *values: query_escape(as_text(values))),
        "call": many(_call),
    }
