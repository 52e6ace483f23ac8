"""The parse tree of a Go template. `source()` prints a node as Go's error messages do."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuscope.judge.rules.templates.go_format import quote


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
