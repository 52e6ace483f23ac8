"""Values of pipelines, fields, methods and function calls of a template, by Go's rules for types.

`Execution` walks the nodes of a template and asks this for values. Steps and the length of every text are
limited here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.rules.templates.go_format import quote
from gpuscope.judge.rules.templates.go_time import GoDuration
from gpuscope.judge.rules.templates.template_nodes import (
    BoolNode,
    ChainNode,
    CommandNode,
    DotNode,
    FieldNode,
    IdentifierNode,
    NilNode,
    NumberNode,
    PipeNode,
    StringNode,
    SyntaxNode,
    Tree,
    VariableNode,
)
from gpuscope.judge.rules.templates.template_values import (
    CAN_BE_NIL,
    FunctionFailed,
    GoFunction,
    GoStruct,
    GoValue,
    TemplateError,
    element_zero,
    go_type,
    is_assignable,
    is_true,
    methods_of,
    zero_of,
)

MISSING = object()
"""No value comes through the pipe."""
_NUMBERS = {"int": "integer", "int64": "integer", "time.Duration": "integer", "float64": "float"}


@dataclass(slots=True)
class Scope:
    """The variables of one template, innermost last."""

    tree: Tree
    variables: list[tuple[str, GoValue]]


@dataclass(slots=True)
class Evaluation:
    functions: Mapping[str, GoFunction]
    limits: Limits
    scope: Scope
    steps: int = field(default=0, init=False)
    text_length: int = field(default=0, init=False)
    """Of all texts and lists that functions have read and returned."""
    node: SyntaxNode | None = field(default=None, init=False)
    """What is evaluated now: an error names it."""

    # errors and limits

    def fail(self, message: str) -> NoReturn:
        node, name = self.node, self.scope.tree.name
        if node is None:
            raise TemplateError(f"template: {name}: {message}")
        before = node.tree.text[: node.position]
        line, line_start = before.count("\n") + 1, before.rfind("\n") + 1
        # Go counts bytes from 0; a reader counts characters from 1.
        at_byte = len(before[line_start:].encode("utf-8", "replace"))
        place = f"{node.tree.parse_name}:{line}:{at_byte}"
        message = f"template: {place}: executing {quote(name)} at <{node.source()}>: {message}"
        raise TemplateError(message, line, node.position - line_start + 1)

    def exceed(self, limit: str, message: str) -> NoReturn:
        LIMITS_REACHED.count(limit)
        self.fail(message)

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.limits.template_max_steps:
            self.exceed("template_max_steps", f"more than {self.limits.template_max_steps} steps")

    def charge(self, values: Iterable[GoValue]) -> None:
        """Count texts and lists before they are copied: a million steps over 8 MB each would take days."""
        self.text_length += sum(len(value) for value in values if isinstance(value, (str, list, dict)))
        if self.text_length > self.limits.template_max_text_bytes:
            limit = self.limits.template_max_text_bytes
            self.exceed("template_max_text_bytes", f"functions use more than {limit} bytes of text")

    def too_long(self) -> NoReturn:
        limit = self.limits.template_max_output_bytes
        self.exceed("template_max_output_bytes", f"the text is longer than {limit} bytes")

    # variables

    def assign(self, name: str, value: GoValue) -> None:
        variables = self.scope.variables
        for number in range(len(variables) - 1, -1, -1):
            if variables[number][0] == name:
                variables[number] = (name, value)
                return
        self.fail(f"undefined variable: {name}")

    def variable(self, name: str) -> GoValue:
        for known, value in reversed(self.scope.variables):
            if known == name:
                return value
        return self.fail(f"undefined variable: {name}")

    # pipelines and commands

    def pipeline(self, dot: GoValue, pipe: PipeNode) -> GoValue:
        self.step()
        self.node = pipe
        value: GoValue = MISSING
        for command in pipe.commands:
            value = self.command(dot, command, value)
        for variable in pipe.variables:
            if pipe.is_assignment:
                self.assign(variable.names[0], value)
            else:
                self.scope.variables.append((variable.names[0], value))
        return value

    def command(self, dot: GoValue, command: CommandNode, final: GoValue) -> GoValue:
        first, arguments = command.arguments[0], command.arguments[1:]
        if isinstance(first, IdentifierNode):
            return self.call_function(dot, first, command, arguments, final)
        if isinstance(first, (FieldNode, ChainNode)) or (
            isinstance(first, VariableNode) and len(first.names) > 1
        ):
            return self.field_chain(dot, first, arguments, final)
        self.node = self.node if isinstance(first, PipeNode) else first
        if arguments or final is not MISSING:
            self.fail(f"can't give argument to non-function {first.source()}")
        if isinstance(first, NilNode):
            self.fail("nil is not a command")
        return self.operand(dot, first)

    def operand(self, dot: GoValue, node: SyntaxNode) -> GoValue:
        """The value of a node that stands alone."""
        self.node = node
        if isinstance(node, DotNode):
            return dot
        if isinstance(node, (BoolNode, StringNode)):
            return node.value
        if isinstance(node, NumberNode):
            return self.constant(node)
        if isinstance(node, PipeNode):
            return self.pipeline(dot, node)
        if isinstance(node, IdentifierNode):
            return self.call_function(dot, node, node, [], MISSING)
        if isinstance(node, VariableNode) and len(node.names) == 1:
            return self.variable(node.names[0])
        return self.field_chain(dot, node, [], MISSING)

    def constant(self, node: NumberNode) -> GoValue:
        if node.imaginary is not None:
            return node.imaginary
        text = node.text
        is_hex = text[:2].lower() == "0x" and not set("pP") & set(text)
        if node.real is not None and not is_hex and text[0] != "'" and set(".eEpP") & set(text):
            return node.real
        if node.integer is None:
            self.fail(f"{text} overflows int")
        return node.integer

    def field_chain(
        self, dot: GoValue, node: SyntaxNode, arguments: list[SyntaxNode], final: GoValue
    ) -> GoValue:
        self.node = node
        if isinstance(node, FieldNode):
            receiver, names = dot, node.names
        elif isinstance(node, VariableNode):
            receiver, names = self.variable(node.names[0]), node.names[1:]
        elif isinstance(node, ChainNode):
            if isinstance(node.node, NilNode):
                self.fail(f"indirection through explicit nil in {node.source()}")
            receiver, names = self.operand(dot, node.node), node.names
        else:
            self.fail(f"can't evaluate command {quote(node.source())}")
        for name, following in pairwise(names):
            receiver = self.field(dot, name, node, [], MISSING, receiver)
            if receiver is None:
                self.fail(f"nil pointer evaluating interface {{}}.{following}")
        return self.field(dot, names[-1], node, arguments, final, receiver)

    def field(
        self,
        dot: GoValue,
        name: str,
        node: SyntaxNode,
        arguments: list[SyntaxNode],
        final: GoValue,
        receiver: GoValue,
    ) -> GoValue:
        if receiver is None:
            return None
        has_arguments = bool(arguments) or final is not MISSING
        if isinstance(receiver, GoStruct) and name in receiver.FIELDS:
            if has_arguments:
                self.fail(f"{name} has arguments but cannot be invoked as function")
            return getattr(receiver, receiver.FIELDS[name])
        method = methods_of(receiver).get(name)
        if method is not None:
            return self.call(dot, method, node, name, arguments, final)
        if isinstance(receiver, dict):
            if has_arguments:
                self.fail(f"{name} is not a method but has arguments")
            return receiver[name] if name in receiver else element_zero(receiver)
        return self.fail(f"can't evaluate field {name} in type {go_type(receiver)}")

    # calls

    def call_function(
        self, dot: GoValue, node: IdentifierNode, whole: SyntaxNode, arguments: list[SyntaxNode], final: GoValue
    ) -> GoValue:
        self.node = node
        function = self.functions.get(node.name)
        if function is None:
            self.fail(f"{quote(node.name)} is not a defined function")
        if node.name in ("and", "or"):
            return self.short_circuit(dot, node.name, arguments, final)
        return self.call(dot, function, whole, node.name, arguments, final)

    def short_circuit(self, dot: GoValue, name: str, arguments: list[SyntaxNode], final: GoValue) -> GoValue:
        if not arguments and final is MISSING:
            self.fail(f"wrong number of args for {name}: want at least 1 got 0")
        value: GoValue = None
        for node in arguments:
            value = self.argument(dot, "any", node)
            if is_true(value) == (name == "or"):
                return value
        return value if final is MISSING else final

    def call(
        self,
        dot: GoValue,
        function: GoFunction,
        node: SyntaxNode,
        name: str,
        arguments: list[SyntaxNode],
        final: GoValue,
    ) -> GoValue:
        self.step()
        parameters = function.parameters
        count = len(arguments) + (final is not MISSING)
        if function.is_variadic:
            fixed = len(parameters) - 1
            if count < fixed:
                self.fail(f"wrong number of args for {name}: want at least {fixed} got {len(arguments)}")
            parameters = parameters[:fixed] + parameters[-1:] * (count - fixed)
        elif count != len(parameters):
            self.fail(f"wrong number of args for {name}: want {len(parameters)} got {count}")
        values = [
            self.argument(dot, wanted, argument)
            for wanted, argument in zip(parameters, arguments, strict=False)
        ]
        if final is not MISSING:
            values.append(self.validate(final, parameters[-1]))
        self.charge(values)
        try:
            result = function.call(*values)
        except FunctionFailed as failure:
            self.node = node
            self.fail(f"error calling {name}: {failure}")
        if isinstance(result, (str, list)) and len(result) > self.limits.template_max_output_bytes:
            self.too_long()
        self.charge((result,))
        return result

    def validate(self, value: GoValue, parameter: str) -> GoValue:
        if value is None:
            if parameter in CAN_BE_NIL:
                return zero_of(parameter)
            self.fail(f"invalid value; expected {parameter}")
        if not is_assignable(value, parameter):
            self.fail(f"wrong type for value; expected {parameter}; got {go_type(value)}")
        return value

    def argument(self, dot: GoValue, parameter: str, node: SyntaxNode) -> GoValue:
        self.node = node
        if isinstance(node, NilNode):
            if parameter not in CAN_BE_NIL:
                self.fail(f"cannot assign nil to {parameter}")
            return zero_of(parameter)
        if not isinstance(node, (BoolNode, StringNode, NumberNode)) or parameter == "any":
            return self.validate(self.operand(dot, node), parameter)
        if parameter == "string" or parameter == "bool":
            if isinstance(node, StringNode if parameter == "string" else BoolNode):
                return self.operand(dot, node)
            self.fail(f"expected {parameter}; found {node.source()}")
        if parameter in _NUMBERS:
            return self.number_argument(parameter, node)
        return self.fail(f"can't handle {node.source()} for arg of type {parameter}")

    def number_argument(self, parameter: str, node: SyntaxNode) -> GoValue:
        word = _NUMBERS[parameter]
        value = getattr(node, "integer" if word == "integer" else "real", None)
        if value is None:
            self.fail(f"expected {word}; found {node.source()}")
        return GoDuration(value) if parameter == "time.Duration" else value
