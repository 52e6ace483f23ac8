"""Go's `fmt.Sprintf`: flags, widths, precisions, argument indexes, and its texts for a wrong format.

A result longer than the caller's limit is an error, so that a wide verb cannot be repeated at will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuscope.judge.rules.templates.go_format import Flags, Room, bad_verb, format_value
from gpuscope.judge.rules.templates.template_values import FunctionFailed, GoValue, go_type

MAX_WIDTH = 1_000_000
"""Go's own limit for widths and precisions."""


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
        found = set()
        while self.peek() and self.peek() in "+-# 0":
            found.add(self.peek())
            self.position += 1
        self.good_index = True
        self.index()
        width = self.star("WIDTH") if self.peek() == "*" else self.number()
        minus = "-" in found
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
            width, precision, minus, "+" in found, "#" in found, " " in found, "0" in found and not minus,
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
