"""Text functions that Prometheus and Alertmanager share: regular expressions, titles, hosts, links.

Regular expressions are RE2's, which take linear time on any pattern.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from functools import lru_cache
from typing import Any

import re2

from gpuscope.base.limits import Limits
from gpuscope.judge.rules.templates.builtin_functions import query_escape
from gpuscope.judge.rules.templates.template_values import FunctionFailed

DEFAULT_MAX_LENGTH = Limits().template_max_output_bytes
_GO_REASONS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "no argument for repetition operator": "missing argument to repetition operator",
}
"""From RE2's words for a mistake to those of Go's regexp package."""
_GROUP = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})", re.ASCII)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else "not valid"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        name, colon, part = text.partition(": ")
        shown = f"{_GO_REASONS.get(name, name)}: `{part}`" if colon else _GO_REASONS.get(name, name)
        raise FunctionFailed(f"error parsing regexp: {shown}") from None


def matches(pattern: str, text: str) -> bool:
    return _compile(pattern).search(text) is not None


def _expand(template: str, found: Any) -> str:
    def group(reference: re.Match[str]) -> str:
        name = reference[1] or reference[2]
        if name is None:
            return "$"
        try:
            return found.group(int(name) if name.isdigit() else name) or ""
        except (IndexError, KeyError, re2.error):
            return ""

    return _GROUP.sub(group, template)


def replace_all(pattern: str, replacement: str, text: str, max_length: int) -> str:
    """Go's `ReplaceAllString`: `$1`, `${name}`; the longest name counts, so `$1x` is the group `1x`."""
    output: list[str] = []
    done = size = 0
    try:
        expression, fixed = _compile(pattern), "$" not in replacement
    except FunctionFailed as failure:
        raise FunctionFailed(f"regexp: Compile(`{pattern}`): {failure}") from None
    for found in expression.finditer(text):
        if found.end() == found.start() and done == found.start() and done > 0 and output:
            # Go allows no empty match right after a match.
            continue
        piece = replacement if fixed else _expand(replacement, found)
        size += found.start() - done + len(piece)
        if size > max_length:
            raise FunctionFailed(f"the text is longer than {max_length} characters")
        output += [text[done : found.start()], piece]
        done = found.end()
    return "".join([*output, text[done:]])


_WORD_JOINERS = frozenset("'’.·:")
"""Inside of a word, before a letter or digit, these do not end a word (Unicode's word boundaries)."""


def title_case(text: str, *, lower_rest: bool) -> str:
    """The first letter of each word in upper case; digits and `_` belong to a word, but are no letters."""
    output, had_letter = [], False
    for position, character in enumerate(text):
        if character.isalpha():
            rest = to_lower(character) if lower_rest else character
            output.append(rest if had_letter else to_title(character))
            had_letter = True
            continue
        output.append(character)
        is_part = character == "_" or character.isdecimal() or unicodedata.category(character)[0] == "M"
        had_letter = had_letter and (is_part or _joins(text, position))
    return "".join(output)


def _joins(text: str, position: int) -> bool:
    return text[position] in _WORD_JOINERS and text[position + 1 : position + 2].isalnum()


def to_title(character: str) -> str:
    """One letter may become two: `ß` is `Ss`."""
    return character.title()


def to_upper(text: str) -> str:
    """Character by character, as Go: no character becomes two."""
    return "".join(upper if len(upper := character.upper()) == 1 else character for character in text)


def to_lower(text: str) -> str:
    return "".join(character.lower()[0] for character in text)


def split_host_port(text: str) -> tuple[str, str] | None:
    """As Go's `net.SplitHostPort`; None where it returns an error."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return None
    if host.startswith("["):
        if not host.endswith("]") or "[" in host[1:] or "]" in host[1:-1]:
            return None
        return host[1:-1], port
    if ":" in host or "[" in text or "]" in text:
        return None
    return host, port


def strip_port(text: str) -> str:
    parts = split_host_port(text)
    return text if parts is None else parts[0]


def strip_domain(text: str) -> str:
    parts = split_host_port(text)
    host, port = (text, "") if parts is None else parts
    try:
        ipaddress.ip_address(host)
        return text
    except ValueError:
        pass
    host = host.split(".")[0]
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}") if port else host


def graph_link(expression: str, tab: int) -> str:
    return f"/graph?g0.expr={query_escape(expression)}&g0.tab={tab}"
