"""Splits the output of `squeue -O` and `sinfo -O` into records, for any text in names and reasons.

Free text comes first, in columns of a fixed number of bytes: Slurm pads a shorter text on the left and cuts a
longer one off. The fields behind it are Slurm's own, end in `|`, and a line break ends the record. No text is
searched for the end of a column, so a job's name cannot end its own, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuscope.base.errors import UnusableAnswer


def format_argument(widths: Mapping[str, int], fields: Sequence[str]) -> str:
    """The value of `-O`: free text by its width in bytes, then fields that are neither padded nor cut off."""
    return ",".join(
        [*(f"{name}:.{width}" for name, width in widths.items()), *(f"{name}:|" for name in fields)]
    )


class RecordSplitter:
    """Takes whole lines while a command prints them: the output of 20,000 jobs has 10 MB."""

    def __init__(self, widths: Mapping[str, int], field_count: int, command: str) -> None:
        self._widths = tuple(widths.values())
        self._texts_width = sum(self._widths)
        self._cell_count = field_count + 1  # an empty one is behind the last `|`
        self._command = command
        self._rest = b""

    def records(self, lines: bytes) -> Iterator[bytes]:
        output = self._rest + lines
        start, size = 0, len(output)
        while start < size:
            end = output.find(b"\n", start + self._texts_width)
            if end < 0:
                break
            yield output[start:end]
            start = end + 1
        self._rest = output[start:]

    def cells(self, record: bytes) -> list[str]:
        """The texts of a record, then its fields.

        Raises UnusableAnswer for another number of fields: then no column is where it should be.
        """
        cells: list[str] = []
        start = 0
        for width in self._widths:
            cells.append(_text(record[start : start + width]))
            start += width
        fields = record[start:].decode("utf-8", "replace").split("|")
        if len(fields) != self._cell_count or fields.pop():
            raise UnusableAnswer(
                f"{self._command} printed a record in an unknown format, so none of its output is used; "
                "check that it is Slurm's own command"
            )
        cells += fields
        return cells

    def finish(self, unfinished_line: str) -> None:
        """`unfinished_line` is what the command printed behind its last line break."""
        if self._rest or unfinished_line:
            raise UnusableAnswer(f"{self._command}'s output was cut off, so none of it is used")


def _text(column: bytes) -> str:
    text = column.lstrip(b" ").decode("utf-8", "replace")
    # Slurm counts bytes: it may cut the last character in two.
    return text.rstrip("\ufffd") if column[:1] != b" " else text
