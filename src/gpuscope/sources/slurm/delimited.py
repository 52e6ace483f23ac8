"""Splits the output of `squeue -O` and `sinfo -O` into records, for any text in names and reasons.

Fields end in `|`. Free text comes last and ends in a mark, a random word that is new for each run of the agent:
a user who does not know it cannot forge a record, not even with line breaks in a job's name. Output that does
not end with the mark and a line break was cut off, and none of it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.errors import UnusableAnswer


def format_argument(fields: Sequence[str], free_text: Sequence[str], mark: str) -> str:
    """The value of `-O`. A field with a suffix and without a size is neither padded nor cut off."""
    return ",".join([*(f"{name}:|" for name in fields), *(f"{name}:{mark}" for name in free_text)])


def split_records(text: str, free_text_count: int, mark: str, command: str) -> Iterator[tuple[str, ...]]:
    """Each record: its fields with the first free text behind them, then the other free texts.

    All records but the first begin with the line break of the one before: removing it here would copy
    megabytes that the parser only compares. Raises UnusableAnswer for truncated output.
    """
    chunks = text.split(mark)
    last = chunks.pop()
    if last not in ("", "\n") or len(chunks) % free_text_count:
        raise UnusableAnswer(f"{command}'s output was cut off, so none of it is used")
    return zip(*(chunks[n::free_text_count] for n in range(free_text_count)), strict=True)
