"""Servers for these tests: a `gpuscope server` in a process of its own, and how to ask it or a real engine.

Everything is asked as any client would: over HTTP, on loopback, by GET or by POST.
"""

from __future__ import annotations

import json
import math
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.model.series import Series
from tests import waiting
from tests.engines import running
from tests.ports import free_port
from tests.promql.hostile import SPAN_MS, START_MS, hostile_storage
from tests.promql.prometheus import same

GPUSCOPE = [sys.executable, "-m", "gpuscope"]
PATIENCE_SECONDS = 60
Parameters = Mapping[str, object]


@contextmanager
def running_gpuscope(data: Path | None, *flags: str | Path) -> Iterator[str]:
    """The base URL of a server with this data folder, or of one over an engine.

    Without roll-ups: a Prometheus, with which it is compared, has no such rules."""
    address = f"127.0.0.1:{free_port()}"
    keeps = () if data is None else ("--data", data, "--rollup-retention", "0")
    command: list[str | Path] = [*GPUSCOPE, "server", "--listen", address, *keeps, *flags]
    with running(command, f"http://{address}/-/ready"):
        yield f"http://{address}"


@dataclass(frozen=True, slots=True)
class Day:
    """Hostile data that ended some minutes ago, the same for every engine that is filled with it."""

    series: list[Series]
    start: int  # seconds
    end: int

    @property
    def middle(self) -> int:
        return (self.start + self.end) // 2


def recent_data() -> Day:
    # Whole minutes, so that the steps of one run fall on the samples as those of another.
    start_ms = (time.time_ns() // 1_000_000 - SPAN_MS - 600_000) // 60_000 * 60_000
    moved = [
        Series(one.labels, one.timestamps + (start_ms - START_MS), one.values)
        for one in hostile_storage().series
    ]
    return Day(moved, start_ms // 1000, (start_ms + SPAN_MS) // 1000)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    kind: str
    body: Any  # what the JSON says, or the text


def ask(url: str, path: str, parameters: Parameters | None = None, *, post: bool = False) -> Answer:
    form = urllib.parse.urlencode(dict(parameters or {}), doseq=True)
    whole = f"{url}{path}" + (f"?{form}" if form and not post else "")
    try:
        with urllib.request.urlopen(whole, form.encode() if post else None, timeout=120) as answer:
            return _answer(answer.status, answer.headers["content-type"] or "", answer.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return _answer(refusal.code, refusal.headers["content-type"] or "", refusal.read())


def _answer(status: int, kind: str, body: bytes) -> Answer:
    if kind.startswith("application/json"):
        return Answer(status, kind, json.loads(body))
    return Answer(status, kind, body.decode())


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Where two JSON documents differ; numbers in strings may differ in the last bits."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            yield f"{where}: keys {sorted(ours)}, not {sorted(theirs)}"
        for key in ours.keys() & theirs.keys():
            yield from differences(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{where}: {len(ours)} entries, not {len(theirs)}"
        for number, pair in enumerate(zip(ours, theirs, strict=False)):
            yield from differences(*pair, f"{where}[{number}]")
    elif ours != theirs and not (_is_number(ours) and _is_number(theirs) and same(float(ours), float(theirs))):
        yield f"{where}: {ours!r}, not {theirs!r}"


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and not math.isnan(float(value))
    except ValueError:
        return False


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    """What `look` gives as soon as it gives something."""
    return waiting.wait_for(look, what)
