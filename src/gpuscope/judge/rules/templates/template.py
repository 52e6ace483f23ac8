"""A parsed template, or a set of them that call each other, and running it, as Go with `missingkey=zero`.

What goes in is hostile: steps, depth, and the length of the output and of every text on the way are limited,
and a value in the data is never parsed as a template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.rules.templates.builtin_functions import builtin_functions
from gpuscope.judge.rules.templates.go_format import format_print, quote
from gpuscope.judge.rules.templates.go_time import GoDuration
from gpuscope.judge.rules.templates.html_output import HtmlOutput
from gpuscope.judge.rules.templates.template_evaluation import Evaluation, Scope
from gpuscope.judge.rules.templates.template_nodes import (
    ActionNode,
    BranchNode,
    JumpNode,
    ListNode,
    PipeNode,
    SyntaxNode,
    TemplateNode,
    TextNode,
    Tree,
)
from gpuscope.judge.rules.templates.template_parser import is_empty, parse_trees
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoFunction,
    GoValue,
    TemplateError,
    is_true,
    kind_of,
)

DEFAULT_LIMITS = Limits()


class Output(Protocol):
    """Where text and values go; the HTML output escapes values for the place they stand in."""

    def render_text(self, node: TextNode) -> str: ...

    def write_value(self, node: ActionNode, value: GoValue) -> str: ...

    def finish(self) -> None:
        """Raise FunctionFailed if the text must not end here."""


class PlainOutput:
    def render_text(self, node: TextNode) -> str:
        return node.text

    def write_value(self, node: ActionNode, value: GoValue) -> str:
        if type(value) is str:
            return value
        return "<no value>" if value is None else format_print([value])

    def finish(self) -> None:
        """Plain text may end anywhere."""


class _Jump(Exception):
    def __init__(self, word: str) -> None:
        self.word = word


@dataclass(slots=True, kw_only=True)
class Execution(Evaluation):
    trees: Mapping[str, Tree]
    output: Output
    parts: list[str] = field(default_factory=list, init=False)
    length: int = field(default=0, init=False)
    depth: int = field(default=0, init=False)

    def run(self, data: GoValue) -> str:
        root = self.scope.tree.root
        if root is None:
            name = self.scope.tree.name
            raise TemplateError(f'template: {name}: "{name}" is an incomplete or empty template')
        try:
            self.walk(data, root)
        except FunctionFailed as failure:
            self.fail(str(failure))
        return "".join(self.parts)

    def write(self, text: str) -> None:
        self.length += len(text)
        if self.length > self.limits.template_max_output_bytes:
            self.too_long()
        self.parts.append(text)

    def walk(self, dot: GoValue, node: SyntaxNode) -> None:
        self.step()
        self.node = node
        if isinstance(node, TextNode):
            self.charge((node.text,))
            self.write(self.output.render_text(node))
        elif isinstance(node, ActionNode):
            value = self.pipeline(dot, node.pipe)
            if not node.pipe.variables:
                self.node = node
                if kind_of(value) == "func":
                    self.fail(f"can't print {node.source()} of type func")
                self.write(self.output.write_value(node, value))
        elif isinstance(node, ListNode):
            for inner in node.nodes:
                self.walk(dot, inner)
        elif isinstance(node, JumpNode):
            raise _Jump(node.word)
        else:
            self.nested(dot, node)

    def nested(self, dot: GoValue, node: SyntaxNode) -> None:
        self.depth += 1
        if self.depth > self.limits.template_max_depth:
            limit = self.limits.template_max_depth
            self.exceed("template_max_depth", f"exceeded maximum template depth ({limit})")
        if isinstance(node, TemplateNode):
            self.call_template(dot, node)
        elif isinstance(node, BranchNode):
            mark = len(self.scope.variables)
            try:
                if node.word == "range":
                    self.walk_range(dot, node)
                else:
                    self.walk_if_or_with(dot, node)
            finally:
                del self.scope.variables[mark:]
        self.depth -= 1

    def walk_if_or_with(self, dot: GoValue, node: BranchNode) -> None:
        value = self.pipeline(dot, node.pipe)
        if is_true(value):
            self.walk(value if node.word == "with" else dot, node.body)
        elif node.otherwise is not None:
            self.walk(dot, node.otherwise)

    def walk_range(self, dot: GoValue, node: BranchNode) -> None:
        value = self.pipeline(dot, node.pipe)
        depth, ran = self.depth, False
        for index, element in self.items(node, value):
            ran = True
            self.step()
            self.set_range_variables(node.pipe, index, element)
            mark = len(self.scope.variables)
            try:
                self.walk(element, node.body)
            except _Jump as jump:
                self.depth = depth
                if jump.word == "break":
                    return
            finally:
                del self.scope.variables[mark:]
        if not ran and node.otherwise is not None:
            self.walk(dot, node.otherwise)

    def items(self, node: BranchNode, value: GoValue) -> Iterator[tuple[GoValue, GoValue]]:
        kind = kind_of(value)
        if kind == "slice":
            return iter(list(enumerate(value)))
        if kind == "map":
            return iter([(key, value[key]) for key in sorted(value)])
        if kind == "invalid":
            return iter(())
        if kind == "int":
            if len(node.pipe.variables) > 1:
                self.fail(f"can't use {value} to iterate over more than one variable")
            return ((None, number) for number in range(value))
        if isinstance(value, GoDuration):
            if len(node.pipe.variables) > 1:
                self.fail(f"can't use {value.go_string()} to iterate over more than one variable")
            return ((None, number) for number in range(value.nanoseconds))
        return self.fail(f"range can't iterate over {format_print([value])}")

    def set_range_variables(self, pipe: PipeNode, index: GoValue, element: GoValue) -> None:
        names = [node.names[0] for node in pipe.variables]
        values = [element] if len(names) == 1 else [index, element]
        if pipe.is_assignment:
            for name, value in zip(names, values, strict=False):
                self.assign(name, value)
        elif names:
            # The pipeline has declared them, last.
            variables = self.scope.variables
            variables[len(variables) - len(names) :] = zip(names, values, strict=True)

    def call_template(self, dot: GoValue, node: TemplateNode) -> None:
        tree = self.trees.get(node.name)
        if tree is None or tree.root is None:
            self.fail(f"template {quote(node.name)} not defined")
        dot = self.pipeline(dot, node.pipe) if node.pipe is not None else None
        outer = self.scope
        self.scope = Scope(tree, [("$", dot)])
        self.walk(dot, tree.root)
        self.scope = outer


def execute(
    tree: Tree,
    data: GoValue,
    trees: Mapping[str, Tree],
    functions: Mapping[str, GoFunction],
    limits: Limits,
    output: Output,
) -> str:
    """The text of a template; `trees` are those that it may call."""
    scope = Scope(tree, [("$", data)])
    return Execution(functions, limits, scope, trees=trees, output=output).run(data)


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    functions: Mapping[str, GoFunction]
    trees: Mapping[str, Tree] = field(repr=False)
    """Its own tree, and those it can call."""
    limits: Limits = field(default=DEFAULT_LIMITS, repr=False)

    def expand(self, data: GoValue, functions: Mapping[str, GoFunction] | None = None) -> str:
        """The text for this data. `functions` replace those of the same name, such as `query` and `now`."""
        return self._run(data, functions, PlainOutput())

    def expand_html(self, data: GoValue, functions: Mapping[str, GoFunction] | None = None) -> str:
        """The HTML for this data: each value is escaped for the place where it stands."""
        return self._run(data, functions, HtmlOutput())

    def _run(self, data: GoValue, functions: Mapping[str, GoFunction] | None, output: Output) -> str:
        known = {**self.functions, **(functions or {})}
        try:
            text = execute(self.trees[self.name], data, self.trees, known, self.limits, output)
            output.finish()
        except FunctionFailed as failure:
            raise TemplateError(f"html/template:{self.name}: {failure}") from None
        except RecursionError:
            LIMITS_REACHED.count("template_max_depth")
            raise TemplateError(f"template: {self.name}: nested too deeply") from None
        return text


def parse(
    text: str,
    name: str,
    functions: Mapping[str, GoFunction],
    base: Template | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Template:
    """`base` is a template whose definitions this text may call; a definition of the same name replaces it."""
    size = len(text.encode("utf-8", "replace"))
    if size > limits.template_max_bytes:
        LIMITS_REACHED.count("template_max_bytes")
        message = f"template: {name}: {size} bytes, and {limits.template_max_bytes} is the limit"
        raise TemplateError(message, 1, 1)
    known = {**builtin_functions(limits.template_max_output_bytes), **functions}
    trees = dict(base.trees) if base is not None else {}
    for tree_name, tree in parse_trees(text, name, known, limits.template_max_depth).items():
        if tree_name not in trees or not is_empty(tree.root) or tree_name == name:
            trees[tree_name] = tree
    return Template(name, known, trees, limits)
