"""Go's template grammar: from a text to trees, one per `define`, `block` and the text itself.

A function or variable that does not exist is an error here, not when the template runs. Nesting is limited,
because a deep tree would exhaust Python's stack.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.rules.templates.go_format import quote
from gpuscope.judge.rules.templates.template_lexer import Token, Type, tokenize
from gpuscope.judge.rules.templates.template_nodes import (
    ActionNode,
    BoolNode,
    BranchNode,
    ChainNode,
    CommandNode,
    DotNode,
    EndNode,
    FieldNode,
    IdentifierNode,
    JumpNode,
    ListNode,
    NilNode,
    NumberNode,
    PipeNode,
    StringNode,
    SyntaxNode,
    TemplateNode,
    TextNode,
    Tree,
    VariableNode,
    parse_number,
    unquote,
)
from gpuscope.judge.rules.templates.template_values import TemplateError

_OPERANDS = (
    Type.BOOL, Type.CHARACTER_CONSTANT, Type.COMPLEX, Type.DOT, Type.FIELD, Type.IDENTIFIER, Type.NUMBER,
    Type.RAW_STRING, Type.STRING, Type.VARIABLE, Type.LEFT_PAREN,
)  # fmt: skip


def parse_trees(text: str, name: str, functions: Collection[str], max_depth: int) -> dict[str, Tree]:
    parser = _Parser(text, name, functions, max_depth)
    parser.top_level()
    return parser.trees


def is_empty(node: SyntaxNode | None) -> bool:
    """A tree of white space never replaces another one."""
    if isinstance(node, ListNode):
        return all(is_empty(inner) for inner in node.nodes)
    return node is None or (isinstance(node, TextNode) and not node.text.strip())


class _Parser:
    def __init__(self, text: str, name: str, functions: Collection[str], max_depth: int) -> None:
        self.text, self.name, self.functions, self.max_depth = text, name, functions, max_depth
        self.tokens = tokenize(text)
        self.next_token = self.depth = self.range_depth = 0
        self.variables = ["$"]
        self.tree = Tree(name, name, text)
        self.trees: dict[str, Tree] = {}
        self.action_line = 0

    # tokens

    def peek(self) -> Token:
        return self.tokens[min(self.next_token, len(self.tokens) - 1)]

    def next(self) -> Token:
        token = self.peek()
        self.next_token += 1
        return token

    def peek_word(self) -> Token:
        while self.peek().type is Type.SPACE:
            self.next_token += 1
        return self.peek()

    def next_word(self) -> Token:
        self.peek_word()
        return self.next()

    def fail(self, message: str) -> NoReturn:
        last = min(max(self.next_token - 1, 0), len(self.tokens) - 1)
        token = self.tokens[last]
        column = token.position - (self.text.rfind("\n", 0, token.position) + 1) + 1
        raise TemplateError(f"template: {self.name}:{token.line}: {message}", token.line, column)

    def unexpected(self, token: Token, context: str) -> NoReturn:
        if token.type is not Type.ERROR:
            self.fail(f"unexpected {token.describe()} in {context}")
        extra = ""
        if self.action_line and self.action_line != token.line:
            extra = f" in action started at {self.name}:{self.action_line}"
            if token.value.endswith(" action"):
                extra = extra.removeprefix(" in action")
        self.fail(token.value + extra)

    def expect(self, token_type: Type, context: str) -> Token:
        token = self.next_word()
        if token.type is not token_type:
            self.unexpected(token, context)
        return token

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > self.max_depth:
            LIMITS_REACHED.count("template_max_depth")
            self.fail(f"nested more than {self.max_depth} deep")

    # lists and actions

    def top_level(self) -> None:
        root = ListNode(self.peek().position, self.tree)
        while self.peek().type is not Type.EOF:
            if self.peek().type is Type.LEFT_DELIMITER:
                begin = self.next_token
                self.next()
                if self.next_word().is_keyword("define"):
                    self.definition()
                    continue
                self.next_token = begin
            node = self.text_or_action()
            if isinstance(node, EndNode):
                self.fail(f"unexpected {node.source()}")
            root.nodes.append(node)
        self.tree.root = root
        self.add(self.tree)

    def add(self, tree: Tree) -> None:
        known = self.trees.get(tree.name)
        if known is None or is_empty(known.root):
            self.trees[tree.name] = tree
        elif not is_empty(tree.root):
            self.fail(f"template: multiple definition of template {quote(tree.name)}")

    def definition(self) -> None:
        context = "define clause"
        name = self.template_name(self.next_word(), context)
        self.expect(Type.RIGHT_DELIMITER, context)
        self.named_tree(name, context)

    def named_tree(self, name: str, context: str) -> None:
        """A body with variables of its own, up to its `end`."""
        outer = self.tree, self.variables, self.range_depth
        self.tree, self.variables, self.range_depth = Tree(name, self.name, self.text), ["$"], 0
        self.tree.root, end = self.item_list()
        if end.word != "end":
            self.fail(f"unexpected {end.source()} in {context}")
        self.add(self.tree)
        self.tree, self.variables, self.range_depth = outer

    def item_list(self) -> tuple[ListNode, EndNode]:
        self.deeper()
        items = ListNode(self.peek_word().position, self.tree)
        while self.peek_word().type is not Type.EOF:
            node = self.text_or_action()
            if isinstance(node, EndNode):
                self.depth -= 1
                return items, node
            items.nodes.append(node)
        self.next()
        return self.fail("unexpected EOF")

    def text_or_action(self) -> SyntaxNode:
        token = self.next_word()
        if token.type is Type.TEXT:
            return TextNode(token.position, self.tree, token.value)
        if token.type is not Type.LEFT_DELIMITER:
            self.unexpected(token, "input")
        self.action_line = token.line
        node = self.action()
        self.action_line = 0
        return node

    def action(self) -> SyntaxNode:
        token = self.next_word()
        if token.type is Type.KEYWORD and token.value != "nil":
            return self.control(token)
        self.next_token -= 1
        return ActionNode(token.position, self.tree, self.pipeline("command", Type.RIGHT_DELIMITER))

    def control(self, token: Token) -> SyntaxNode:
        word = token.value
        if word in ("if", "with", "range"):
            return self.branch(word)
        if word in ("break", "continue"):
            end = self.next_word()
            if end.type is not Type.RIGHT_DELIMITER:
                self.unexpected(end, f"{{{{{word}}}}}")
            if self.range_depth == 0:
                self.fail(f"{{{{{word}}}}} outside {{{{range}}}}")
            return JumpNode(token.position, self.tree, word)
        if word == "end":
            return EndNode(self.expect(Type.RIGHT_DELIMITER, "end").position, self.tree, "end")
        if word == "else":
            peek = self.peek_word()
            if not (peek.is_keyword("if") or peek.is_keyword("with")):
                peek = self.expect(Type.RIGHT_DELIMITER, "else")
            return EndNode(peek.position, self.tree, "else")
        if word == "block":
            return self.block()
        if word == "template":
            return self.template_call()
        return self.unexpected(token, "command")

    def block(self) -> SyntaxNode:
        context = "block clause"
        token = self.next_word()
        name = self.template_name(token, context)
        pipe = self.pipeline(context, Type.RIGHT_DELIMITER)
        self.named_tree(name, context)
        return TemplateNode(token.position, self.tree, name, pipe)

    def template_call(self) -> SyntaxNode:
        context = "template clause"
        token = self.next_word()
        name = self.template_name(token, context)
        pipe = None
        if self.next_word().type is not Type.RIGHT_DELIMITER:
            self.next_token -= 1
            pipe = self.pipeline(context, Type.RIGHT_DELIMITER)
        return TemplateNode(token.position, self.tree, name, pipe)

    def template_name(self, token: Token, context: str) -> str:
        if token.type not in (Type.STRING, Type.RAW_STRING):
            self.unexpected(token, context)
        return self.string_value(token)

    def string_value(self, token: Token) -> str:
        try:
            return unquote(token.value)
        except ValueError as error:
            self.fail(str(error))

    def branch(self, word: str) -> BranchNode:
        known_variables = len(self.variables)
        pipe = self.pipeline(word, Type.RIGHT_DELIMITER)
        self.range_depth += word == "range"
        body, end = self.item_list()
        self.range_depth -= word == "range"
        otherwise = None
        if end.word == "else":
            if word in ("if", "with") and self.peek().is_keyword(word):
                self.next()
                self.deeper()
                otherwise = ListNode(end.position, self.tree, [self.branch(word)])
                self.depth -= 1
            else:
                otherwise, end = self.item_list()
                if end.word != "end":
                    self.fail(f"expected end; found {end.source()}")
        del self.variables[known_variables:]
        return BranchNode(pipe.position, self.tree, word, pipe, body, otherwise)

    # pipelines

    def pipeline(self, context: str, end: Type) -> PipeNode:
        pipe = PipeNode(self.peek_word().position, self.tree)
        self.declarations(pipe, context)
        while True:
            token = self.next_word()
            if token.type is end:
                self.check_pipeline(pipe, context)
                return pipe
            if token.type not in _OPERANDS and not token.is_keyword("nil"):
                self.unexpected(token, context)
            self.next_token -= 1
            pipe.commands.append(self.command())

    def declarations(self, pipe: PipeNode, context: str) -> None:
        while self.peek_word().type is Type.VARIABLE:
            begin = self.next_token
            token = self.next()
            follower = self.peek_word()
            if follower.type not in (Type.ASSIGN, Type.DECLARE) and follower.value != ",":
                self.next_token = begin
                return
            self.next()
            pipe.variables.append(VariableNode(token.position, self.tree, [token.value]))
            self.variables.append(token.value)
            if follower.value != ",":
                pipe.is_assignment = follower.type is Type.ASSIGN
                return
            if context != "range" or len(pipe.variables) >= 2:
                self.fail(f"too many declarations in {context}")
            if self.peek_word().type not in (Type.VARIABLE, Type.RIGHT_DELIMITER, Type.RIGHT_PAREN):
                self.fail("range can only initialize variables")

    def check_pipeline(self, pipe: PipeNode, context: str) -> None:
        if not pipe.commands:
            self.fail(f"missing value for {context}")
        for stage, command in enumerate(pipe.commands[1:], 2):
            if isinstance(command.arguments[0], (BoolNode, DotNode, NilNode, NumberNode, StringNode)):
                self.fail(f"non executable command in pipeline stage {stage}")

    def command(self) -> CommandNode:
        command = CommandNode(self.peek_word().position, self.tree)
        while True:
            self.peek_word()
            operand = self.operand()
            if operand is not None:
                command.arguments.append(operand)
            token = self.next()
            if token.type is Type.SPACE:
                continue
            if token.type in (Type.RIGHT_DELIMITER, Type.RIGHT_PAREN):
                self.next_token -= 1
            elif token.type is not Type.PIPE:
                self.unexpected(token, "operand")
            break
        if not command.arguments:
            self.fail("empty command")
        return command

    def operand(self) -> SyntaxNode | None:
        node = self.term()
        if node is None or self.peek().type is not Type.FIELD:
            return node
        position, names = self.peek().position, []
        while self.peek().type is Type.FIELD:
            names.append(self.next().value[1:])
        if isinstance(node, FieldNode):
            return FieldNode(position, self.tree, [*node.names, *names])
        if isinstance(node, VariableNode):
            return VariableNode(position, self.tree, [*node.names, *names])
        if isinstance(node, (BoolNode, StringNode, NumberNode, NilNode, DotNode)):
            self.fail(f"unexpected . after term {quote(node.source())}")
        return ChainNode(position, self.tree, node, names)

    def term(self) -> SyntaxNode | None:
        token = self.next_word()
        tree, position, value = self.tree, token.position, token.value
        match token.type:
            case Type.IDENTIFIER:
                if value not in self.functions:
                    self.fail(f"function {quote(value)} not defined")
                return IdentifierNode(position, tree, value)
            case Type.VARIABLE:
                if value not in self.variables:
                    self.fail(f"undefined variable {quote(value)}")
                return VariableNode(position, tree, [value])
            case Type.DOT:
                return DotNode(position, tree)
            case Type.FIELD:
                return FieldNode(position, tree, [value[1:]])
            case Type.BOOL:
                return BoolNode(position, tree, value == "true")
            case Type.STRING | Type.RAW_STRING:
                return StringNode(position, tree, value, self.string_value(token))
            case Type.CHARACTER_CONSTANT | Type.COMPLEX | Type.NUMBER:
                return self.number(token)
            case Type.LEFT_PAREN:
                self.deeper()
                pipe = self.pipeline("parenthesized pipeline", Type.RIGHT_PAREN)
                self.depth -= 1
                return pipe
        if token.is_keyword("nil"):
            return NilNode(position, tree)
        self.next_token -= 1
        return None

    def number(self, token: Token) -> SyntaxNode:
        try:
            return parse_number(token.value, token.type, token.position, self.tree)
        except ValueError as error:
            self.fail(str(error))
