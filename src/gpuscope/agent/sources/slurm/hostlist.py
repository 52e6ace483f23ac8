"""Slurm's hostlists: `gpu[1-3,7],login` becomes the names it stands for.

Ranges keep their leading zeros, several brackets in one name multiply, and a name without brackets stands for
itself. A list may stand for millions of names, so the caller gives a limit; text that is not a hostlist and a
list beyond the limit raise ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

MAX_HOSTS = 100_000
MAX_PLACEMENTS = 200_000  # of all jobs together: one for each node of each job
MAX_BRACKETS = 16  # in one hostlist expression of one name; each multiplies the names
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def expand_hostlist(text: str, max_hosts: int = MAX_HOSTS) -> tuple[str, ...]:
    """The names in order. Raises ValueError for unbalanced brackets, a bad range, or too many names."""
    if "[" not in text and "]" not in text and "," not in text:  # one node, as most jobs have
        return (text,) if text else ()
    names: list[str] = []
    for part in _split_outside_brackets(text):
        if part.count("[") > MAX_BRACKETS:
            raise ValueError(f"hostlist {text[:80]!r} has more than {MAX_BRACKETS} brackets in one name")
        names.extend(islice(_expand(part), max_hosts - len(names) + 1))
        if len(names) > max_hosts:
            raise ValueError(f"hostlist {text[:80]!r} stands for more than {max_hosts} nodes")
    return tuple(names)


def _split_outside_brackets(text: str) -> Iterator[str]:
    start = depth = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            if position > start:
                yield text[start:position]
            start = position + 1
        if depth not in (0, 1):
            raise ValueError(f"hostlist {text[:80]!r} has unbalanced brackets")
    if depth:
        raise ValueError(f"hostlist {text[:80]!r} has unbalanced brackets")
    if start < len(text):
        yield text[start:]


def _expand(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, tail = rest.partition("]")
    for number in _numbers(inside):
        for end in _expand(tail):
            yield head + number + end
    if not inside:
        raise ValueError(f"hostlist {part[:80]!r} has empty brackets")


def _numbers(inside: str) -> Iterator[str]:
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(f"hostlist range {piece[:40]!r} is not N or N-M")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"hostlist range {piece[:40]!r} counts down")
        width = len(first)
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{width}d}"
