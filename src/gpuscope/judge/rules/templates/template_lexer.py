"""The tokens of a Go template: literal text outside of `{{ }}`, words, literals and punctuation inside.

The last token is EOF, or an error token whose value is the reason: the parser reports it where it meets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuscope.judge.rules.templates.go_format import quote

LEFT, RIGHT, COMMENT_BEGIN, COMMENT_END = "{{", "}}", "/*", "*/"
SPACES = " \t\r\n"
KEYWORDS = frozenset(
    {"block", "break", "continue", "define", "else", "end", "if", "range", "nil", "template", "with"}
)


class Type(StrEnum):
    ERROR = "error"
    EOF = "EOF"
    TEXT = "text"
    LEFT_DELIMITER = "left delimiter"
    RIGHT_DELIMITER = "right delimiter"
    SPACE = "space"
    ASSIGN = "="
    DECLARE = ":="
    PIPE = "|"
    LEFT_PAREN = "("
    RIGHT_PAREN = ")"
    CHARACTER = "character"
    STRING = "string"
    RAW_STRING = "raw string"
    CHARACTER_CONSTANT = "character constant"
    NUMBER = "number"
    COMPLEX = "complex"
    BOOL = "bool"
    IDENTIFIER = "identifier"
    FIELD = "field"
    VARIABLE = "variable"
    DOT = "dot"
    KEYWORD = "keyword"


@dataclass(frozen=True, slots=True)
class Token:
    type: Type
    position: int
    value: str
    line: int

    def describe(self) -> str:
        """As Go's error texts name it."""
        if self.type is Type.EOF:
            return "EOF"
        if self.type is Type.ERROR:
            return self.value
        if self.type in (Type.KEYWORD, Type.DOT):
            return f"<{self.value}>"
        return f"{quote(self.value[:10])}..." if len(self.value) > 10 else quote(self.value)

    def is_keyword(self, word: str) -> bool:
        return self.type is Type.KEYWORD and self.value == word


def tokenize(text: str) -> list[Token]:
    return _Lexer(text).run()


class _Failed(Exception):
    pass


def _is_word(character: str) -> bool:
    return character == "_" or (bool(character) and (character.isalpha() or character.isdecimal()))


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = self.start = self.parens = 0
        self.line, self.counted = 1, 0
        self.tokens: list[Token] = []

    def run(self) -> list[Token]:
        try:
            while self.outside():
                while self.inside():
                    pass
        except _Failed as failure:
            self.tokens.append(Token(Type.ERROR, self.start, str(failure), self.line_at(self.start)))
        return self.tokens

    def line_at(self, position: int) -> int:
        """Counts on from the last call, because counting from the start is quadratic."""
        self.line += self.text.count("\n", self.counted, position)
        self.counted = max(self.counted, position)
        return self.line

    def emit(self, token_type: Type, value: str | None = None) -> None:
        taken = self.text[self.start : self.position] if value is None else value
        self.tokens.append(Token(token_type, self.start, taken, self.line_at(self.start)))
        self.start = self.position

    def peek(self, ahead: int = 0) -> str:
        return self.text[self.position + ahead : self.position + ahead + 1]

    def outside(self) -> bool:
        """Literal text up to the next action; False at the end."""
        start = self.text.find(LEFT, self.position)
        end = start if start >= 0 else len(self.text)
        literal = self.text[self.position : end]
        after = self.text[end + 2 : end + 4]
        trims = start >= 0 and len(after) == 2 and after[0] == "-" and after[1] in SPACES
        if trims:
            literal = literal.rstrip(SPACES)
        if literal:
            self.emit(Type.TEXT, literal)
        if start < 0:
            self.position = self.start = len(self.text)
            self.emit(Type.EOF)
            return False
        self.start = end
        self.position = end + 2
        inner = end + (4 if trims else 2)  # the marker is the hyphen and its space
        if self.text.startswith(COMMENT_BEGIN, inner):
            self.comment(inner)
            return self.outside()
        self.emit(Type.LEFT_DELIMITER)
        self.position = self.start = inner
        self.parens = 0
        return True

    def comment(self, begin: int) -> None:
        self.start = begin
        end = self.text.find(COMMENT_END, begin + 2)
        if end < 0:
            raise _Failed("unclosed comment")
        self.position = end + 2
        is_end, trims = self.at_right_delimiter()
        if not is_end:
            raise _Failed("comment ends before closing delimiter")
        self.skip_right_delimiter(trims)

    def at_right_delimiter(self) -> tuple[bool, bool]:
        """Whether the action ends here, and whether it trims the text after it."""
        if self.peek() and self.peek() in SPACES and self.text.startswith("-" + RIGHT, self.position + 1):
            return True, True
        return self.text.startswith(RIGHT, self.position), False

    def skip_right_delimiter(self, trims: bool) -> None:
        self.position += 4 if trims else 2
        if trims:
            while self.peek() and self.peek() in SPACES:
                self.position += 1
        self.start = self.position

    def inside(self) -> bool:
        """One token of an action; False after its end."""
        is_end, trims = self.at_right_delimiter()
        if is_end:
            if self.parens:
                raise _Failed("unclosed left paren")
            self.start = self.position + (2 if trims else 0)
            self.emit(Type.RIGHT_DELIMITER, RIGHT)
            self.skip_right_delimiter(trims)
            return False
        character = self.peek()
        if not character:
            raise _Failed("unclosed action")
        self.position += 1
        if character in SPACES:
            self.space()
        elif character in "\"`'":
            self.quoted(character)
        elif character == "$":
            self.field_or_variable(Type.VARIABLE)
        elif character == "." and not ("0" <= self.peek() <= "9"):
            self.field_or_variable(Type.FIELD)
        elif character in ".+-" or "0" <= character <= "9":
            self.position -= 1
            self.number()
        elif _is_word(character):
            self.word()
        else:
            self.punctuation(character)
        return True

    def punctuation(self, character: str) -> None:
        if character == ":":
            self.position += 1
            if self.text[self.position - 1 : self.position] != "=":
                raise _Failed("expected :=")
            self.emit(Type.DECLARE)
        elif character in "=|":
            self.emit(Type.ASSIGN if character == "=" else Type.PIPE)
        elif character in "()":
            self.parens += 1 if character == "(" else -1
            if self.parens < 0:
                raise _Failed("unexpected right paren")
            self.emit(Type.LEFT_PAREN if character == "(" else Type.RIGHT_PAREN)
        elif " " < character < "\x7f":
            self.emit(Type.CHARACTER)
        else:
            raise _Failed(f"unrecognized character in action: {_name_character(character)}")

    def space(self) -> None:
        while self.peek() and self.peek() in SPACES:
            self.position += 1
        # The last space belongs to a following ` -}}`.
        if self.text.startswith("-" + RIGHT, self.position):
            self.position -= 1
            if self.position == self.start:
                return
        self.emit(Type.SPACE)

    def quoted(self, mark: str) -> None:
        names = {'"': "quoted string", "`": "raw quoted string", "'": "character constant"}
        types = {'"': Type.STRING, "`": Type.RAW_STRING, "'": Type.CHARACTER_CONSTANT}
        while True:
            character = self.peek()
            self.position += 1
            if character == mark:
                break
            if character == "\\" and mark != "`":
                character = self.peek()
                self.position += 1
            if not character or (character == "\n" and mark != "`"):
                raise _Failed(f"unterminated {names[mark]}")
        self.emit(types[mark])

    def at_terminator(self) -> bool:
        character = self.peek()
        if not character or character in SPACES or character in ".,|:)(":
            return True
        return self.text.startswith(RIGHT, self.position)

    def field_or_variable(self, token_type: Type) -> None:
        if self.at_terminator():
            self.emit(Type.VARIABLE if token_type is Type.VARIABLE else Type.DOT)
            return
        self.skip_word()
        self.emit(token_type)

    def skip_word(self) -> None:
        while _is_word(self.peek()):
            self.position += 1
        if not self.at_terminator():
            raise _Failed(f"bad character {_name_character(self.peek())}")

    def word(self) -> None:
        self.skip_word()
        word = self.text[self.start : self.position]
        if word in KEYWORDS:
            self.emit(Type.KEYWORD)
        else:
            self.emit(Type.BOOL if word in ("true", "false") else Type.IDENTIFIER)

    def number(self) -> None:
        is_good = self.scan_number()
        is_complex = is_good and self.peek() in ("+", "-")
        if is_complex:
            is_good = self.scan_number() and self.text[self.position - 1] == "i"
        if not is_good:
            raise _Failed(f"bad number syntax: {quote(self.text[self.start : self.position])}")
        self.emit(Type.COMPLEX if is_complex else Type.NUMBER)

    def accept(self, characters: str) -> bool:
        is_accepted = bool(self.peek()) and self.peek() in characters
        self.position += is_accepted
        return is_accepted

    def accept_run(self, characters: str) -> None:
        while self.accept(characters):
            pass

    def scan_number(self) -> bool:
        self.accept("+-")
        digits = "0123456789_"
        if self.accept("0"):
            if self.accept("xX"):
                digits = "0123456789abcdefABCDEF_"
            elif self.accept("oO"):
                digits = "01234567_"
            elif self.accept("bB"):
                digits = "01_"
        self.accept_run(digits)
        if self.accept("."):
            self.accept_run(digits)
        if (len(digits) == 11 and self.accept("eE")) or (len(digits) == 23 and self.accept("pP")):
            self.accept("+-")
            self.accept_run("0123456789_")
        self.accept("i")
        if _is_word(self.peek()):
            self.position += 1
            return False
        return True


def _name_character(character: str) -> str:
    """As Go's %#U."""
    if not character:
        return "U+FFFFFFFFFFFFFFFF"
    shown = f" '{character}'" if character.isprintable() else ""
    return f"U+{ord(character):04X}{shown}"
