"""Go's `fmt`: how values print in templates, by verb and flags, with its texts for a wrong verb.

`format_print` is `fmt.Sprint`, `format_printf` is `fmt.Sprintf`, which reads the flags of each verb. A result
longer than the caller's limit is an error, so that a wide verb cannot be repeated at will.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoStruct,
    GoValue,
    Stringer,
    go_type,
    kind_of,
)

MAX_NESTING = 100
DEFAULT_MAX_LENGTH = Limits().template_max_output_bytes
VALUE_COST = 64
"""Characters that each printed value counts as, beside its text: an empty value takes time too."""
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
MAX_WIDTH = 1_000_000
"""Go's own limit for widths and precisions."""


@dataclass(slots=True)
class Room:
    """The characters that a text may still have: a list in a list in a list prints exponentially many."""

    left: int

    def take(self, text: str) -> str:
        """Count one value and its text; raises FunctionFailed if there is no room for them."""
        self.left -= len(text) + VALUE_COST
        if self.left < 0:
            LIMITS_REACHED.count("template_max_output_bytes")
            raise FunctionFailed("the text is too long")
        return text


@dataclass(frozen=True, slots=True)
class Flags:
    width: int | None = None
    precision: int | None = None
    minus: bool = False
    plus: bool = False
    sharp: bool = False
    space: bool = False
    zero: bool = False
    room: Room | None = None

    def pad(self, text: str, *, zeros: bool = True) -> str:
        if self.width is None or len(text) >= self.width:
            return text
        if self.minus:
            return text.ljust(self.width)
        return text.rjust(self.width, "0" if self.zero and zeros else " ")


PLAIN = Flags()


def float_text(value: float, verb: str, precision: int | None) -> str:
    """As `strconv.FormatFloat`; `None` is the shortest text that reads back as the same number."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    if verb in "xX":
        return _hex_text(value) if verb == "x" else _hex_text(value).upper()
    if precision is not None:
        return f"{value:.{precision}{verb}}"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = 0 if text == "0" else len(digits) + int(exponent) - 1
    minus = "-" if sign else ""
    lower = verb.lower()
    if lower == "e" or (lower == "g" and not -4 <= point < 6):
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        mark = "E" if verb.isupper() else "e"
        return f"{minus}{text[0]}{fraction}{mark}{'-' if point < 0 else '+'}{abs(point):02d}"
    if point < 0:
        return f"{minus}0.{'0' * (-point - 1)}{text}"
    whole = text[: point + 1].ljust(point + 1, "0")
    return f"{minus}{whole}.{text[point + 1 :]}" if text[point + 1 :] else minus + whole


def _hex_text(value: float) -> str:
    """With every digit; Go's precision for %x is not supported."""
    mantissa, exponent = math.frexp(abs(value))
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return f"{sign}0x0p+00"
    digits = (mantissa * 2).hex().partition("p")[0].rstrip("0").rstrip(".")
    return f"{sign}{digits}p{'-' if exponent < 1 else '+'}{abs(exponent - 1):02d}"


def format_print(values: Sequence[GoValue], max_length: int = DEFAULT_MAX_LENGTH) -> str:
    """With a space between two operands of which neither is a string."""
    parts: list[str] = []
    flags = Flags(room=Room(max_length))
    for number, value in enumerate(values):
        if number and not isinstance(value, str) and not isinstance(values[number - 1], str):
            parts.append(" ")
        parts.append(format_value(value, "v", flags))
    return "".join(parts)


def format_println(values: Sequence[GoValue], max_length: int = DEFAULT_MAX_LENGTH) -> str:
    flags = Flags(room=Room(max_length))
    return " ".join(format_value(value, "v", flags) for value in values) + "\n"


def format_value(value: GoValue, verb: str, flags: Flags, depth: int = 0) -> str:
    if flags.room is None:
        return _format_value(value, verb, flags, depth)
    if isinstance(value, (list, dict, GoStruct)):
        flags.room.take("")  # its elements are counted
        return _format_value(value, verb, flags, depth)
    return flags.room.take(_format_value(value, verb, flags, depth))


def _format_value(value: GoValue, verb: str, flags: Flags, depth: int) -> str:
    if depth > MAX_NESTING:
        raise FunctionFailed("value is nested too deeply")
    if verb == "T":
        return flags.pad(go_type(value))
    if value is None:
        return flags.pad("<nil>") if verb == "v" else bad_verb(value, verb, flags)
    if isinstance(value, Stringer) and verb in "vsxXq":
        return _format_string(value.go_string(), verb, flags)
    if isinstance(value, GoStruct):
        return _format_struct(value, verb, flags, depth)
    formatters: dict[str, Callable[[Any, str, Flags], str]] = {
        "bool": _format_bool, "int": _format_int, "float64": _format_float, "complex": _format_complex,
        "string": _format_string,
    }  # fmt: skip
    kind = kind_of(value)
    if kind in formatters:
        return formatters[kind](value, verb, flags)
    if kind == "func":
        return "0x0"  # an address in Go; never useful
    return _format_container(value, verb, flags, depth)


def _format_container(value: GoValue, verb: str, flags: Flags, depth: int) -> str:
    if isinstance(value, list):
        inner = [format_value(item, verb, flags, depth + 1) for item in value]
        return f"[{' '.join(inner)}]"
    if isinstance(value, dict):
        pairs = (
            f"{format_value(key, verb, flags, depth + 1)}:{format_value(value[key], verb, flags, depth + 1)}"
            for key in sorted(value)
        )
        return f"map[{' '.join(pairs)}]"
    # A Duration under a verb for numbers.
    number = getattr(value, "nanoseconds", None) if go_type(value).endswith("Duration") else None
    return _format_int(number, verb, flags) if number is not None else bad_verb(value, verb, flags)


def _format_struct(value: GoStruct, verb: str, flags: Flags, depth: int) -> str:
    names = list(value.FIELDS)
    inner = [format_value(field, verb, flags, depth + 1) for field in value.go_fields()]
    if flags.plus and verb == "v":
        inner = [f"{name}:{text}" for name, text in zip(names, inner, strict=True)]
    return f"{{{' '.join(inner)}}}"


def bad_verb(value: GoValue, verb: str, flags: Flags) -> str:
    if value is None:
        return f"%!{verb}(<nil>)"
    return f"%!{verb}({go_type(value)}={format_value(value, 'v', flags)})"


def _format_bool(value: bool, verb: str, flags: Flags) -> str:
    return flags.pad("true" if value else "false") if verb in "tv" else bad_verb(value, verb, flags)


def _format_int(value: int, verb: str, flags: Flags) -> str:
    if verb == "c":
        return flags.pad(_character(value))
    if verb == "q":
        return flags.pad(_quote_character(value))
    if verb == "U":
        return flags.pad(f"U+{value:04X}")
    bases = {"v": "d", "d": "d", "b": "b", "o": "o", "O": "o", "x": "x", "X": "X"}
    if verb not in bases:
        return bad_verb(value, verb, flags)
    digits = format(abs(value), bases[verb])
    if flags.precision is not None:
        if flags.precision == 0 and value == 0:
            return flags.pad("", zeros=False)
        digits = digits.rjust(flags.precision, "0")
    sign = "-" if value < 0 else "+" if flags.plus else " " if flags.space else ""
    prefix = {"b": "0b", "o": "0", "x": "0x", "X": "0X"}.get(verb, "") if flags.sharp else ""
    prefix = "0o" if verb == "O" else prefix
    if flags.zero and flags.width is not None and not flags.minus and flags.precision is None:
        digits = digits.rjust(flags.width - len(sign), "0")
    return flags.pad(sign + prefix + digits, zeros=False)


def _character(code: int) -> str:
    return chr(code) if 0 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


def _quote_character(code: int) -> str:
    text = _character(code)
    return "'\\''" if text == "'" else "'" + quote(text)[1:-1].replace('\\"', '"') + "'"


def _format_float(value: float, verb: str, flags: Flags) -> str:
    if verb not in "veEfFgGxX":
        return bad_verb(value, verb, flags)
    style = {"v": "g", "F": "f"}.get(verb, verb)
    default = None if style in "gGxX" else 6
    text = float_text(value, style, flags.precision if flags.precision is not None else default)
    if text[0] not in "+-":
        text = "+" + text
    if flags.space and text[0] == "+" and not flags.plus:
        text = " " + text[1:]
    if text[1] in "IN":
        return flags.pad(
            text[1:] if text[1] == "N" and not flags.space and not flags.plus else text, zeros=False
        )
    if flags.sharp:
        text = _keep_point(text, style, flags.precision)
    if flags.plus or text[0] != "+":
        if flags.zero and not flags.minus and flags.width is not None:
            return text[0] + text[1:].rjust(flags.width - 1, "0")
        return flags.pad(text)
    return flags.pad(text[1:])


def _keep_point(text: str, style: str, precision: int | None) -> str:
    """The flag `#`: always a decimal point, and for %g no trailing zeros removed."""
    digits = 0 if style not in "gG" else 6 if precision is None else precision
    head, mark, exponent = text.partition("E" if style.isupper() else "e")
    significant = head[1:].replace(".", "").lstrip("0")
    digits -= len(significant)
    if "." not in head:
        digits -= head[1:] == "0"
        head += "."
    return f"{head}{'0' * max(digits, 0)}{mark}{exponent}"


def _format_complex(value: complex, verb: str, flags: Flags) -> str:
    if verb not in "veEfFgG":
        return bad_verb(value, verb, flags)
    real = _format_float(value.real, verb, flags)
    return f"({real}{_format_float(value.imag, verb, replace(flags, plus=True))}i)"


def _format_string(value: str, verb: str, flags: Flags) -> str:
    text = str(value)
    if flags.precision is not None and verb in "vsq":
        text = text[: flags.precision]
    if verb in "vs":
        return flags.pad(text)
    if verb == "q":
        return flags.pad(_quote_with(text, flags))
    if verb in "xX":
        data = text.encode("utf-8", "replace")
        data = data[: flags.precision] if flags.precision is not None else data
        separator = " " if flags.space else ""
        prefix = f"0{verb}" if flags.sharp and data else ""
        digits = (separator + (prefix if flags.space else "")).join(f"{byte:02x}" for byte in data)
        return flags.pad(prefix + (digits.upper() if verb == "X" else digits))
    return bad_verb(value, verb, flags)


def _quote_with(text: str, flags: Flags) -> str:
    if flags.sharp and "`" not in text and all(c == "\t" or (c >= " " and c not in "\x7f\ufeff") for c in text):
        return f"`{text}`"
    return quote(text, ascii_only=flags.plus)


def quote(text: str, ascii_only: bool = False) -> str:
    """As `strconv.Quote`: a double-quoted Go string."""
    parts = ['"']
    for character in text:
        code = ord(character)
        if character in '"\\':
            parts.append("\\" + character)
        elif character in _ESCAPES:
            parts.append(_ESCAPES[character])
        elif code < 0x20 or code == 0x7F:
            parts.append(f"\\x{code:02x}")
        elif character == " " or (character.isprintable() and (code < 0x7F or not ascii_only)):
            parts.append(character)
        else:
            parts.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return "".join([*parts, '"'])


class _Printf:
    """One run over a format string."""

    def __init__(self, text: str, values: Sequence[GoValue], max_length: int) -> None:
        self.text, self.values, self.max_length = text, values, max_length
        self.position = self.argument = self.length = 0
        self.reordered = self.good_index = False
        self.output: list[str] = []
        self.room = Room(max_length)

    def run(self) -> str:
        while self.position < len(self.text):
            percent = self.text.find("%", self.position)
            self.write(self.text[self.position : percent if percent >= 0 else None])
            if percent < 0:
                break
            self.position = percent + 1
            self.verb()
        if not self.reordered and self.argument < len(self.values):
            extra = ", ".join(
                "<nil>"
                if value is None
                else f"{go_type(value)}={format_value(value, 'v', Flags(room=self.room))}"
                for value in self.values[self.argument :]
            )
            self.write(f"%!(EXTRA {extra})")
        return "".join(self.output)

    def write(self, text: str) -> None:
        self.length += len(text)
        if self.length > self.max_length:
            raise FunctionFailed(f"the text is longer than {self.max_length} characters")
        self.output.append(text)

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def number(self) -> int | None:
        number = None
        while self.peek().isdigit() and self.peek().isascii():
            if number is not None and number > MAX_WIDTH:
                self.position = len(self.text)  # as Go: the rest of the format is lost
                return None
            number = (number or 0) * 10 + int(self.peek())
            self.position += 1
        return number

    def index(self) -> None:
        """`[n]` selects the next argument."""
        if self.peek() != "[":
            return
        self.reordered = True
        end = self.text.find("]", self.position)
        digits = self.text[self.position + 1 : end] if end >= 0 else ""
        self.good_index = digits.isascii() and digits.isdigit() and 1 <= int(digits[:9]) <= len(self.values)
        if self.good_index:
            self.argument = int(digits) - 1
        self.position = end + 1 if end >= 0 else self.position + 1

    def star(self, name: str) -> int | None:
        """A width or precision that is an argument."""
        self.position += 1
        value = self.values[self.argument] if self.argument < len(self.values) else None
        self.argument += 1
        if type(value) is int and abs(value) <= MAX_WIDTH:
            return value
        self.write(f"%!(BAD{name})")
        return None

    def flags(self) -> Flags:
        given = set()
        while self.peek() and self.peek() in "+-# 0":
            given.add(self.peek())
            self.position += 1
        self.good_index = True
        self.index()
        width = self.star("WIDTH") if self.peek() == "*" else self.number()
        minus = "-" in given
        if width is not None and width < 0:
            width, minus = -width, True
        precision: int | None = None
        if self.peek() == ".":
            self.position += 1
            self.index()
            if self.peek() == "*":
                precision = self.star("PREC")
                precision = None if precision is not None and precision < 0 else precision
            else:
                precision = self.number() or 0
        self.index()
        return Flags(
            width, precision, minus, "+" in given, "#" in given, " " in given, "0" in given and not minus,
            self.room,
        )  # fmt: skip

    def verb(self) -> None:
        flags = self.flags()
        verb = self.peek()
        if not verb:
            self.write("%!(NOVERB)")
            return
        self.position += 1
        if verb == "%":
            self.write("%")
        elif not self.good_index:
            self.write(f"%!{verb}(BADINDEX)")
        elif self.argument >= len(self.values):
            self.write(f"%!{verb}(MISSING)")
        else:
            value = self.values[self.argument]
            self.argument += 1
            if verb == "v":
                flags = replace(flags, plus=False)  # `%+v` adds the names of fields, not a sign
            self.write(format_value(value, verb, flags) if verb != "w" else bad_verb(value, verb, flags))


def format_printf(text: str, values: Sequence[GoValue], max_length: int) -> str:
    return _Printf(text, values, max_length).run()
