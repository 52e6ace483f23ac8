"""Splits what `squeue -O` and `sinfo -O` print into records, whatever users wrote into names and reasons.

Fields end in `|`. Free text comes last and ends in a mark, a random word that is new for each run of the agent:
a user who does not know it cannot forge a record, not even with line breaks in a job's name. Output that does
not end with the mark and a line break was cut off, and none of it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.errors import SourceError


def format_argument(fields: Sequence[str], free_text: Sequence[str], mark: str) -> str:
    """The value of `-O`. A field with a suffix and without a size is neither padded nor cut off."""
    return ",".join([*(f"{name}:|" for name in fields), *(f"{name}:{mark}" for name in free_text)])


Record = tuple[list[str], list[str]]


def split_records(text: str, free_text_count: int, mark: str, command: str) -> Iterator[Record]:
    """(fields, free texts) of each record. Raises SourceError for truncated output."""
    chunks = text.split(mark)
    last = chunks.pop()
    if last not in ("", "\n") or len(chunks) % free_text_count:
        raise SourceError(f"{command}'s output was cut off; it is used whole or not at all")
    for start in range(0, len(chunks), free_text_count):
        head, *rest = chunks[start : start + free_text_count]
        # The first free text stands behind the last `|` of the fields, which themselves cannot hold one.
        yield head.removeprefix("\n").split("|"), rest
