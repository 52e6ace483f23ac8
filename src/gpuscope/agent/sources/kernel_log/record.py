"""Records and batches, which all readers of the kernel log return."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.vendor import vendors


class KernelLogRecord(NamedTuple):
    microseconds: int  # since boot, by the kernel's clock
    text: str
    sequence: Maybe[int] = ABSENT
    at: Maybe[float] = ABSENT  # seconds since the epoch, if the log has it


@dataclass(frozen=True, slots=True)
class Batch:
    """New records since the last batch. `caught_up`: all records were read."""

    records: tuple[KernelLogRecord, ...] = ()
    caught_up: bool = True
    overruns: int = 0  # how many times the log was overwritten before it was read


@cache
def _prefixes() -> tuple[bytes, ...]:
    return tuple(vendor.kernel_prefix for vendor in vendors().values() if vendor.kernel_prefix)


def is_of_driver(line: bytes) -> bool:
    """Whether a GPU driver may have written it; other records are skipped."""
    return any(prefix in line for prefix in _prefixes())


class LogReader(Protocol):
    """Raises SourceError if it cannot read the log any more."""

    name: str

    def read(self) -> Batch | None:
        """None if the next read is not due yet."""
        ...

    def close(self) -> None: ...
