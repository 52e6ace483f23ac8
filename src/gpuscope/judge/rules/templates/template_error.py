"""The one error of templates: at load for a text that does not parse, when it runs for one that fails."""

from __future__ import annotations

from gpuscope.base.errors import UsageError


class TemplateError(UsageError):
    """`message` is Go's whole text; line and column (from 1, in characters) are 0 where no place is known."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column
