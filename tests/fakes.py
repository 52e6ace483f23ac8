"""Stand-ins for the outside: a clock that is moved by hand, a source that says what it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Device, ErrorEvent, ErrorTotal, Instance, Maybe, Reading, Uuid
from gpuscope.model.source import Source, SourceSpec, Tier
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, OWN_NAMES, make_device, own, throttle_reasons

P = TypeVar("P", Device, Instance)
T = TypeVar("T")
Keywords = dict[str, Any]
"""Values that become keyword arguments: a `dict[str, str]` is refused where one of the others is a number."""


def make_settings(**values: Any) -> Settings:
    """With settings of sources, which the type checker knows only through `Settings.view`."""
    return Settings(**values)


def present(value: Maybe[T]) -> T:
    assert value is not ABSENT
    return value


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
    return make_device(uuid=Uuid(f"GPU-{index}"), index=index, **readings)


def replace_readings(part: P, **readings: object) -> P:
    """With other readings, those of the device and NVIDIA's own mixed."""
    mine = {name: readings.pop(name) for name in OWN_NAMES & readings.keys()}
    if "throttle_mask" in mine:
        readings["throttle_reasons"] = throttle_reasons(mine["throttle_mask"])
    if "mig_enabled" in mine:
        readings["is_split"] = mine["mig_enabled"] == 1
    return replace(part, vendor_values=replace(own(part), **mine), **readings)  # type: ignore[arg-type]


def xid_event(code: int, **more: object) -> ErrorEvent:
    return ErrorEvent(vendor=NVIDIA, code=str(code), **more)  # type: ignore[arg-type]


def xid_total(code: int, **more: object) -> ErrorTotal:
    return ErrorTotal(vendor=NVIDIA, code=str(code), **more)  # type: ignore[arg-type]


class Hanging:
    """A read that never returns until it is let go."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self) -> Reading:
        self.release.wait()
        return Reading()
