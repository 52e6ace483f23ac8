"""Stand-ins for the outside: a clock that is moved by hand, a source that says what it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuscope.base.settings import Settings
from gpuscope.model.readings import Device, Reading, Uuid
from gpuscope.model.source import Source, SourceSpec, Tier


class FakeClock:
    def __init__(self, at: float = 1_700_000_000.0) -> None:
        self.at = at
        self.since_start = 100.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.since_start

    def pass_seconds(self, seconds: float) -> None:
        self.at += seconds
        self.since_start += seconds


class FakeSource:
    """Answers with `answer()`; keeps what it was asked."""

    def __init__(self, answer: Callable[[], Reading]) -> None:
        self.answer = answer
        self.asked: list[frozenset[Tier]] = []
        self.closed = 0

    def read(self, due: frozenset[Tier]) -> Reading:
        self.asked.append(due)
        return self.answer()

    def close(self) -> None:
        self.closed += 1


def spec_of(source: Source | Callable[[Settings], Source], name: str = "fake") -> SourceSpec:
    opener = source if callable(source) else lambda settings: source
    return SourceSpec(name=name, summary="a fake", open=opener)


def gpu(index: int = 0, **readings: object) -> Device:
    return Device(uuid=Uuid(f"GPU-{index}"), index=index, **readings)  # type: ignore[arg-type]


class Hanging:
    """A read that never returns until it is let go."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self) -> Reading:
        self.release.wait()
        return Reading()
