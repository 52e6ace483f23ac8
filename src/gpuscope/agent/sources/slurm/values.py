"""Single values of Slurm's text: times, durations, counts, memory, states, array task lists.

Slurm writes a value it does not have in many ways (`N/A`, `Unknown`, `None`, `NONE`, `(null)`): all are ABSENT.
Times are seconds since 1970, because every command runs with SLURM_TIME_FORMAT=%s; a local time is read too,
for servers and versions that ignore it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from gpuscope.base.errors import SourceError, SourceTimeout, UnusableAnswer
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import SlurmFailure

MAX_TEXT_CHARACTERS = 256
MAX_VALUE = 1 << 63  # Slurm's numbers have 64 bits; a larger one is not a count or a time
MAX_ARRAY_TASKS = 4_000_001  # Slurm's own largest MaxArraySize
_NOTHING = frozenset({"", "N/A", "n/a", "NA", "Unknown", "None", "NONE", "(null)", "UNLIMITED", "INVALID"})
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", re.ASCII)
_DAYS_HOURS = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGTP]?)", re.ASCII)
_TASK_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_SUFFIXES = {
    "*": "not_responding", "~": "powered_down", "#": "powering_up", "!": "powering_down", "%": "power_down",
    "$": "maint", "@": "reboot_requested", "^": "reboot_issued", "-": "planned",
}  # fmt: skip
_FLAG_NAMES = {"maintenance": "maint"}  # StateComplete and slurmrestd write out what StateLong shortens
_LONG_STATES = {  # states that `sinfo` shows in place of a base state and a flag
    "drained": ("idle", "drain"), "draining": ("allocated", "drain"), "drain": ("idle", "drain"),
    "maint": ("idle", "maint"), "reserved": ("idle", "reserved"), "completing": ("allocated", "completing"),
    "planned": ("idle", "planned"), "powering_up": ("idle", "powering_up"),
    "powering_down": ("idle", "powering_down"), "powered_down": ("idle", "powered_down"),
    "power_down": ("idle", "power_down"), "power_up": ("idle", "power_up"), "failing": ("allocated", "fail"),
    "fail": ("idle", "fail"), "blocked": ("idle", "blocked"), "reboot": ("idle", "reboot_requested"),
    "reboot_issued": ("idle", "reboot_issued"), "inval": ("idle", "invalid_reg"),
    "perfctrs": ("idle", "perfctrs"),
}  # fmt: skip


def parse_number(text: str) -> Maybe[float]:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    return float("inf") if text == "inf" else ABSENT


def parse_integer(text: str) -> Maybe[int]:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else ABSENT


def parse_time(text: str) -> Maybe[float]:
    """Seconds since 1970, or a local time such as `2026-11-15T18:25:37`."""
    if text.isdecimal():
        seconds = parse_integer(text)
        return ABSENT if seconds is ABSENT or seconds == 0 else float(seconds)
    if text in _NOTHING:
        return ABSENT
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return ABSENT


def parse_duration_text(text: str) -> Maybe[float]:
    """Seconds of `D-HH:MM:SS`, `HH:MM:SS`, `MM:SS`, `D-HH` or bare minutes."""
    match = _DURATION.fullmatch(text)
    if match is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    match = _DAYS_HOURS.fullmatch(text)
    if match is not None:
        return float((int(match[1]) * 24 + int(match[2])) * 3600)
    minutes_only = parse_integer(text)
    return ABSENT if minutes_only is ABSENT else 60.0 * minutes_only


def parse_mebibytes(text: str) -> Maybe[int]:
    """Bytes of a number of MiB, which is Slurm's unit for memory; `62.50G` has its own unit."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return ABSENT
    power = " KMGTP".index(match[2]) if match[2] else 2
    return round(float(match[1]) * (1 << 10 * power))


def count_array_tasks(expression: str) -> int:
    """How many tasks `0-9`, `1,3,5-99:2%4` stands for; 1 for what is not such an expression.

    `%4` is how many may run at once. A list that Slurm cut off (`1,3,...`) counts what is there.
    """
    listed = expression.partition("%")[0].strip("[]")
    count = 0
    for piece in listed.split(","):
        match = _TASK_RANGE.fullmatch(piece)
        if match is None:
            continue
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        count += max(0, (last - first) // max(1, step) + 1)
    return min(max(count, 1), MAX_ARRAY_TASKS)


def node_flags(words: Iterable[str]) -> frozenset[str]:
    """One name for each flag, in lower case, whoever wrote it."""
    return frozenset(_FLAG_NAMES.get(word, word) for word in words)


def parse_node_state(long_state: str, complete_state: str = "") -> tuple[str, frozenset[str]]:
    """(base state, flags) in lower case, from `sinfo`'s StateComplete (`mixed+drain`) or else from StateLong.

    A state that is not known is its own base state, so that a newer Slurm's states show under their names.
    """
    text = (complete_state or long_state).strip().lower()
    if "+" in text:
        base, *flags = [part for part in text.split("+") if part] or [text]  # "+" alone is its own state
        return base, node_flags(flags)
    found = set()
    while text and text[-1] in _SUFFIXES:
        found.add(_SUFFIXES[text[-1]])
        text = text[:-1]
    base, flag = _LONG_STATES.get(text, (text, ""))
    return base, frozenset(found | {flag} if flag else found)


# Splits the output of `squeue -O` and `sinfo -O` into records, for any text in names and reasons.
#
# Free text comes first, in columns of a fixed number of bytes: Slurm pads a shorter text on the left and cuts
# a longer one off. The fields behind it are Slurm's own, end in `|`, and a line break ends the record. No
# text is searched for the end of a column, so a job's name cannot end its own, whatever is in it.


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


# Why a request to Slurm failed, as a value: the doctor chooses the fix by it, not by words of a message.


class SlurmError(SourceError):
    def __init__(self, message: str, failure: SlurmFailure, code: int = -1) -> None:
        super().__init__(message, code)
        self.failure = failure


def failure_of(error: SourceError) -> SlurmFailure:
    if isinstance(error, SlurmError):
        return error.failure
    if isinstance(error, SourceTimeout):
        return SlurmFailure.TIMEOUT
    return SlurmFailure.UNUSABLE_ANSWER if isinstance(error, UnusableAnswer) else SlurmFailure.OTHER


# What differs between the versions of Slurm that are read, 20.11 to 26.05: the one table of differences.
#
# Commands are not chosen by version: a client refuses a field it does not have by name, and then the field is
# left out (`OPTIONAL_FIELDS`). Text that only some versions print is absent where it is not printed.
# slurmrestd has one API version per release, tried from the newest.

OLDEST: Final = (20, 11)
NEWEST: Final = (26, 5)

OPTIONAL_FIELDS: Final = {
    "squeue": frozenset({"HetJobID", "EligibleTime", "QOS", "tres-alloc", "EndTime"}),
    "sinfo": frozenset({"StateComplete", "GresUsed", "User", "Timestamp", "CPUsLoad", "FreeMem"}),
    "sshare": frozenset({"LevelFS"}),
}
"""Fields of `-O` and `-o` that a version may not have. Without `StateComplete` (20.11) the
flags are read from the state and its suffix. All other fields are in every version."""

REST_API: Final = (
    ((26, 5), "v0.0.45"),
    ((25, 11), "v0.0.44"),
    ((25, 5), "v0.0.43"),
    ((24, 11), "v0.0.42"),
    ((24, 5), "v0.0.41"),
    ((23, 11), "v0.0.40"),
    ((23, 2), "v0.0.39"),
    ((22, 5), "v0.0.38"),
    ((21, 8), "v0.0.37"),
)
"""The newest API of slurmrestd by release. v0.0.36 (20.11) is not read: it shows a drained node as `allocated`,
without flags, and neither its allocated CPUs nor its partitions. Up to v0.0.38 a number is a number and a job's
state is a text; from v0.0.39 on many numbers are `{"set", "infinite", "number"}` and a state is a list."""

METRICS_PAGES_SINCE: Final = (25, 11)
"""`MetricsType=metrics/openmetrics` in slurm.conf: slurmctld serves its own pages. Older ones refuse it."""

SHARD_COUNTS_SINCE: Final = (23, 2)
"""`GresUsed` of shards and MPS: `shard:h100:2(-/2,2/2)` since; before, `shard:h100:1(IDX:1)`, the number of
GPUs of which jobs have shares: how many shares is not known then."""

ACCOUNT_IN_PROLOG_SINCE: Final = (22, 5)
"""`SLURM_JOB_ACCOUNT` of a prolog: 20.11 does not set it, and the notes of the prolog lack the account."""

_VERSION = re.compile(r"(\d{2})\.(\d{2})(?:\.(\d+))?")


def parse_version(text: str) -> str:
    """`slurm-wlm 22.05.8` is `22.05.8`; empty if the text has no version."""
    match = _VERSION.search(text)
    return match[0] if match else ""


def refused_field(complaint: str) -> str:
    """The field that a client refused: `squeue: error: Invalid job format specification: LicensesAlloc`."""
    match = re.search(r"[Ii]nvalid (?:\w+ )*(?:specification|field requested)[:,]? ?\"?([\w/-]+)", complaint)
    return match[1] if match else ""
