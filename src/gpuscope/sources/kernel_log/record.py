"""What the ways to the kernel log have in common: records, in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from gpuscope.readings import ABSENT, Maybe

MARK: Final = b"NVRM"  # only records with it are looked into; it stands in every line of the driver's


class Record(NamedTuple):
    microseconds: int  # since boot, by the kernel's own clock
    text: str
    sequence: Maybe[int] = ABSENT
    at: Maybe[float] = ABSENT  # seconds since the epoch, where the log says so


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new since the last one. `caught_up`: nothing that was there is left for the next."""

    records: tuple[Record, ...] = ()
    caught_up: bool = True
    overruns: int = 0  # how often the log was overwritten before we read it


class LogReader(Protocol):
    """Raises SourceError when the log can no longer be read this way."""

    name: str

    def read(self) -> Batch | None:
        """None when it is not time to look again."""
        ...

    def close(self) -> None: ...
