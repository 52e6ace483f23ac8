"""Explains YAML syntax errors. Input: the parser's error and the text; output: one or two sentences.

PyYAML reports what it expected ("<block end>"); a user needs to know that a line is indented too far. The cause
is guessed from the lines around the error. Messages contain no control characters of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # YAML's line breaks, which PyYAML counts
_INDENT = re.compile(r"[ \t]*")
_KEY = re.compile(
    r"""[ ]*(?:-[ ]+)*(?P<key>"[^"]*"|'[^']*'|[^\s'"#:-][^:#]*?)[ ]*:"""
    r"""(?:[ ]+(?P<value>[^#\s].*)|[ ]*(?:#.*)?)\Z"""
)
_MAX_LINE = 1000
"""Only this many characters of a line are examined."""
_CANNOT_START = re.compile(r"found character '(.+)' that cannot start any token")


@dataclass(frozen=True, slots=True)
class _Mistake:
    line: int  # from 0
    column: int
    cause: str


def explain(error: Any, text: str) -> str:
    """`line 7, column 5: …`"""
    position = getattr(error, "position", None)
    mark = getattr(error, "problem_mark", None)
    if mark is None and isinstance(position, int):  # a character that YAML does not allow
        before = text[:position]
        where = _Mistake(before.count("\n"), position - before.rfind("\n") - 1, _bad_character(text, position))
    elif mark is None:
        return f"not valid YAML: {' '.join(str(error).split())[:200]}"
    else:
        where = _diagnose(error, [line[:_MAX_LINE] for line in _BREAK.split(text)])
    return f"line {where.line + 1}, column {where.column + 1}: {where.cause}"


def _bad_character(text: str, position: int) -> str:
    return f"the character U+{ord(text[position]):04X} is not allowed in YAML"


def _diagnose(error: Any, lines: list[str]) -> _Mistake:
    problem, mark = str(error.problem), error.problem_mark
    start = error.context_mark or mark
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = _INDENT.match(line)[0]  # type: ignore[index]  # matches always
    if "\t" in indent and "cannot start" in problem:
        return _Mistake(mark.line, indent.index("\t"), "a tab; indent with spaces")
    if "mapping values are not allowed" in problem:
        return _unexpected_colon(lines, mark)
    if "expected <block end>" in problem:
        return _wrong_indentation(lines, mark, start, problem)
    if "unexpected end of stream" in problem:
        return _Mistake(start.line, start.column, "this quoted text has no closing quote")
    if "expected ',' or" in problem:
        bracket = "]" if "sequence" in str(error.context) else "}"
        return _Mistake(
            start.line, start.column, f"the closing {bracket} of this list or mapping, or a comma, is missing"
        )
    if "could not find expected ':'" in problem:
        return _Mistake(start.line, start.column, "no ': ' after this key")
    return _Mistake(mark.line, mark.column, _other_cause(problem))


def _other_cause(problem: str) -> str:
    if found := _CANNOT_START.match(problem):
        return f"a text that starts with {found[1]} must be in quotes"
    if "found '<stream end>'" in problem:
        return "the file ends inside a list or mapping; its closing ] or } is missing"
    if "undefined alias" in problem:
        return "* starts an alias, which is not defined; put the text in quotes"
    if "constructor for the tag" in problem:
        return "! starts a tag, which is not known; put the text in quotes"
    if "unknown escape character" in problem:
        return "in double quotes a backslash starts an escape; use single quotes"
    if "another document" in problem:
        return "a second document starts here; only one is allowed"
    return " ".join("".join(c if c.isprintable() else "?" for c in problem).split())[:200]


def _unexpected_colon(lines: list[str], mark: Any) -> _Mistake:
    line = lines[min(mark.line, len(lines) - 1)]
    own_column = len(line) - len(line.lstrip(" "))
    if re.search(r":[ ]", line[: mark.column].lstrip(" ")):
        return _Mistake(mark.line, mark.column, "a second ': ' in this line; put the value in quotes")
    above = _above(lines, mark.line)
    if above is None:
        return _Mistake(mark.line, mark.column, "a ': ' where no key is allowed")
    key = _KEY.match(lines[above])
    if key is not None and key["value"] is not None and own_column > key.start("key"):
        return _too_far(mark.line, own_column, above, key)
    begins = len(lines[above]) - len(lines[above].lstrip(" "))
    bare = lines[above].strip()
    if re.match(r"-[^\s-]", bare):
        return _Mistake(above, begins, "no space after the '-'")
    if re.match(r"[\w-]+:\S", bare):
        return _Mistake(above, begins, "no space after the ':'")
    return _Mistake(above, begins, "no ': ' after this key")


def _wrong_indentation(lines: list[str], mark: Any, start: Any, problem: str) -> _Mistake:
    if problem.endswith("found '-'"):
        cause = "a list entry beside the keys of a mapping; indent it below the key it belongs to"
        return _Mistake(mark.line, mark.column, cause)
    above = _above(lines, mark.line)
    key = None if above is None else _KEY.match(lines[above])
    if above is not None and key is not None and key["value"] is not None and mark.column > key.start("key"):
        return _too_far(mark.line, mark.column, above, key)
    columns = sorted({start.column + 1, *([] if key is None else [key.start("key") + 1])})
    cause = (
        f"this line starts in column {mark.column + 1}, the lines above in column "
        f"{' or '.join(map(str, columns))}; correct its indentation"
    )
    return _Mistake(mark.line, mark.column, cause)


def _too_far(line: int, column: int, above: int, key: re.Match[str]) -> _Mistake:
    name = key["key"] if key["key"].isprintable() and len(key["key"]) <= 60 else "the key"
    cause = (
        f"indented more than {name} in line {above + 1}, which already has a value; "
        f"start it in column {key.start('key') + 1}, below {name}"
    )
    return _Mistake(line, column, cause)


def _above(lines: list[str], line: int) -> int | None:
    """The last line before that is neither blank nor a comment."""
    for number in range(line - 1, -1, -1):
        bare = lines[number].strip()
        if bare and not bare.startswith("#"):
            return number
    return None
