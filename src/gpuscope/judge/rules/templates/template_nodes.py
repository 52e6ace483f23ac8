"""The parse tree of a Go template, and the literals in it: strings, characters, numbers in every base.

`source()` prints a node as Go's error messages do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpuscope.judge.rules.templates.go_format import quote
from gpuscope.judge.rules.templates.template_lexer import Type
from gpuscope.judge.rules.templates.template_values import FunctionFailed

_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_HEX = {"x": 2, "u": 4, "U": 8}
_INT = re.compile(
    r"[+-]?(0[xX](_?[0-9a-fA-F])+|0[oO](_?[0-7])+|0[bB](_?[01])+|0(_?[0-7])*|[1-9](_?[0-9])*)", re.ASCII
)
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_HEX_FLOAT = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+", re.ASCII)
_INT64 = 1 << 63
_SPECIAL = {"nan": float("nan"), "inf": float("inf"), "infinity": float("inf")}


@dataclass(slots=True)
class SyntaxNode:
    position: int
    """Offset into the text of its tree."""
    tree: Tree

    def source(self) -> str:
        raise NotImplementedError


@dataclass(slots=True)
class Tree:
    name: str
    """The name it is called by."""
    parse_name: str
    """The name of the text that it stands in: error messages give this one."""
    text: str
    root: ListNode | None = None


@dataclass(slots=True)
class ListNode(SyntaxNode):
    nodes: list[SyntaxNode] = field(default_factory=list)

    def source(self) -> str:
        return "".join(node.source() for node in self.nodes)


@dataclass(slots=True)
class TextNode(SyntaxNode):
    text: str

    def source(self) -> str:
        return self.text


@dataclass(slots=True)
class IdentifierNode(SyntaxNode):
    name: str

    def source(self) -> str:
        return self.name


@dataclass(slots=True)
class VariableNode(SyntaxNode):
    names: list[str]
    """`$name`, then fields."""

    def source(self) -> str:
        return ".".join(self.names)


@dataclass(slots=True)
class FieldNode(SyntaxNode):
    names: list[str]

    def source(self) -> str:
        return "".join(f".{name}" for name in self.names)


@dataclass(slots=True)
class ChainNode(SyntaxNode):
    """Fields of a parenthesised pipeline or of a function's result."""

    node: SyntaxNode
    names: list[str]

    def source(self) -> str:
        inner = self.node.source()
        return (f"({inner})" if isinstance(self.node, PipeNode) else inner) + "".join(
            f".{name}" for name in self.names
        )


@dataclass(slots=True)
class DotNode(SyntaxNode):
    def source(self) -> str:
        return "."


@dataclass(slots=True)
class NilNode(SyntaxNode):
    def source(self) -> str:
        return "nil"


@dataclass(slots=True)
class BoolNode(SyntaxNode):
    value: bool

    def source(self) -> str:
        return "true" if self.value else "false"


@dataclass(slots=True)
class StringNode(SyntaxNode):
    quoted: str
    value: str

    def source(self) -> str:
        return self.quoted


@dataclass(slots=True)
class NumberNode(SyntaxNode):
    """A literal with every type that it can have; a parameter's type chooses."""

    text: str
    integer: int | None = None
    real: float | None = None
    imaginary: complex | None = None
    overflows: bool = False

    def source(self) -> str:
        return self.text


@dataclass(slots=True)
class CommandNode(SyntaxNode):
    arguments: list[SyntaxNode] = field(default_factory=list)

    def source(self) -> str:
        return " ".join(
            f"({node.source()})" if isinstance(node, PipeNode) else node.source() for node in self.arguments
        )


@dataclass(slots=True)
class PipeNode(SyntaxNode):
    is_assignment: bool = False
    variables: list[VariableNode] = field(default_factory=list)
    commands: list[CommandNode] = field(default_factory=list)

    def source(self) -> str:
        names = ", ".join(node.source() for node in self.variables)
        sign = " = " if self.is_assignment else " := "
        return (names + sign if names else "") + " | ".join(node.source() for node in self.commands)


@dataclass(slots=True)
class ActionNode(SyntaxNode):
    pipe: PipeNode

    def source(self) -> str:
        return f"{{{{{self.pipe.source()}}}}}"


@dataclass(slots=True)
class BranchNode(SyntaxNode):
    """`if`, `with` or `range`."""

    word: str
    pipe: PipeNode
    body: ListNode
    otherwise: ListNode | None

    def source(self) -> str:
        tail = f"{{{{else}}}}{self.otherwise.source()}" if self.otherwise is not None else ""
        return f"{{{{{self.word} {self.pipe.source()}}}}}{self.body.source()}{tail}{{{{end}}}}"


@dataclass(slots=True)
class TemplateNode(SyntaxNode):
    name: str
    pipe: PipeNode | None

    def source(self) -> str:
        tail = f" {self.pipe.source()}" if self.pipe is not None else ""
        return f"{{{{template {quote(self.name)}{tail}}}}}"


@dataclass(slots=True)
class JumpNode(SyntaxNode):
    """`break` or `continue`."""

    word: str

    def source(self) -> str:
        return f"{{{{{self.word}}}}}"


@dataclass(slots=True)
class EndNode(SyntaxNode):
    """`end` or `else`: closes a list, and is in no tree."""

    word: str

    def source(self) -> str:
        return f"{{{{{self.word}}}}}"


def unquote(text: str) -> str:
    """The value of a quoted string; ValueError where an escape is not one of Go's."""
    mark, inner = text[0], text[1:-1]
    if mark == "`":
        return inner.replace("\r", "")
    output, position = bytearray(), 0
    while position < len(inner):
        character = inner[position]
        if character != "\\":
            output += character.encode("utf-8", "replace")
            position += 1
            continue
        code, position, is_byte = _escape(inner, position + 1, mark)
        output += bytes([code]) if is_byte else chr(code).encode()
    return output.decode("utf-8", "replace")


def _escape(text: str, position: int, mark: str) -> tuple[int, int, bool]:
    """Code, position after it, and whether it is a single byte."""
    letter = text[position : position + 1]
    if letter == mark or letter in _SIMPLE:
        return (ord(mark) if letter == mark else _SIMPLE[letter]), position + 1, False
    if letter in _HEX:
        digits = text[position + 1 : position + 1 + _HEX[letter]]
        if len(digits) == _HEX[letter] and re.fullmatch("[0-9a-fA-F]+", digits):
            code = int(digits, 16)
            if letter == "x" or (code < 0x110000 and not 0xD800 <= code < 0xE000):
                return code, position + 1 + len(digits), letter == "x"
    digits = text[position : position + 3]
    if re.fullmatch("[0-7]{3}", digits) and int(digits, 8) < 256:
        return int(digits, 8), position + 3, True
    raise ValueError("invalid syntax")


def _character(text: str) -> int:
    inner = text[1:-1]
    if inner[:1] == "\\":
        code, end, _ = _escape(inner, 1, "'")
        if end != len(inner):
            raise ValueError(f"malformed character constant: {text}")
        return code
    if not inner:
        raise ValueError("invalid syntax")
    if len(inner) != 1:
        raise ValueError(f"malformed character constant: {text}")
    return ord(inner)


def _float(text: str) -> float | None:
    """As `strconv.ParseFloat`; None where it is not a number or out of range."""
    plain = text.replace("_", "") if text.lower().lstrip("+-").startswith("0x") else text
    try:
        value = float.fromhex(plain) if _HEX_FLOAT.fullmatch(plain) else None
        if value is None and _FLOAT.fullmatch(plain):
            value = float(plain)
    except OverflowError:
        return None
    return value if value is not None and value not in (float("inf"), float("-inf")) else None


def parse_integer(text: str) -> int | None:
    """As `strconv.ParseInt(text, 0, …)` without its range."""
    if not _INT.fullmatch(text):
        return None
    digits = text.lstrip("+-").replace("_", "").lower()
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xob":
        digits = "0o" + digits[1:]
    number = int(digits, 0)
    return -number if text[0] == "-" else number


def parse_number(text: str, token_type: Type, position: int, tree: Tree) -> NumberNode:
    """ValueError with Go's words where it is none."""
    if token_type is Type.CHARACTER_CONSTANT:
        code = _character(text)
        return NumberNode(position, tree, text, code, float(code))
    if token_type is Type.COMPLEX or text.endswith("i"):
        return _complex(text, position, tree)
    integer = parse_integer(text)
    if integer is not None and -_INT64 <= integer < 2 * _INT64:
        if integer >= _INT64:
            return NumberNode(position, tree, text, None, float(integer), overflows=True)
        return NumberNode(position, tree, text, integer, float(integer))
    real = _float(text)
    if integer is not None or (real is not None and not re.search("[.eEpP]", text)):
        raise ValueError(f"integer overflow: {quote(text)}")
    if real is None:
        raise ValueError(f"illegal number syntax: {quote(text)}")
    as_integer = int(real) if real.is_integer() and abs(real) < _INT64 else None
    return NumberNode(position, tree, text, as_integer, real)


def _complex(text: str, position: int, tree: Tree) -> NumberNode:
    try:
        value = complex(text[:-1] + "j")
    except ValueError:
        raise ValueError(f"illegal number syntax: {quote(text)}") from None
    node = NumberNode(position, tree, text, imaginary=value)
    if value.imag == 0:
        node.real = value.real
        node.integer = int(value.real) if value.real.is_integer() else None
    return node


def parse_go_float(text: str) -> float:
    """A text as a number, by Go's rules for `strconv.ParseFloat`."""
    word = text.lstrip("+-").lower() if text[:1] in ("+", "-") else text.lower()
    if word in _SPECIAL and (word != "nan" or text[:1] not in ("+", "-")):
        return -_SPECIAL[word] if text[0] == "-" else _SPECIAL[word]
    is_number = _FLOAT.fullmatch(text) or _HEX_FLOAT.fullmatch(text)
    if not is_number:
        raise FunctionFailed(f"strconv.ParseFloat: parsing {quote(text)}: invalid syntax")
    value = _float(text)
    if value is None:
        raise FunctionFailed(f"strconv.ParseFloat: parsing {quote(text)}: value out of range")
    return value
