"""The live picture, made when a client asks and the last one is old: one for all clients.

Input: samples, the nodes and GPUs that are missing from them, and the judge. Output: the picture, and the
bodies of `/api/live` and `/api/findings`, each encoded once. Updates are at least a second apart, and further
apart if one takes long, so that viewers of a large fleet do not use a whole core.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson

from gpuscope.base.errors import GpuscopeError
from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.checks.facts import NOTHING_MISSING, Missing, Sample
from gpuscope.serve.api_types.findings_json import FindingJson, FindingsAnswer
from gpuscope.serve.api_types.live_json import LiveNode, LivePicture
from gpuscope.serve.live.fleet_judge import FleetJudge, JudgedFleet
from gpuscope.serve.live.fleet_samples import FleetSamples, PresenceSamples, SortLater
from gpuscope.serve.live.picture import LivePictures
from gpuscope.serve.live.shown_text import shown_text

FRESH_SECONDS = 0.9
MAX_AGE_SECONDS = 5.0
"""Maximum age of an answer that is served while the next one is made; its `taken_at` tells its age."""
MAX_CPU_SHARE = 0.12
"""Maximum share of a core for making pictures: one of 8,000 GPUs takes 0.08 s, the first one 0.8 s. That
leaves room for the differences and 20 viewers within 15 % of a core."""
MAX_READING_SHARE = 0.5
"""Maximum share of the time in which samples are read: reading takes another engine's time."""

T = TypeVar("T")
ReadSamples = Callable[[], Awaitable[FleetSamples | SortLater]]
Turn = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Body:
    plain: bytes
    gzipped: bytes


@dataclass(frozen=True, slots=True)
class _Cost:
    """What one picture cost."""

    reading_seconds: float
    cpu_seconds: float

    @property
    def seconds_between(self) -> float:
        """From the beginning of one picture to that of the next."""
        return max(self.reading_seconds / MAX_READING_SHARE, self.cpu_seconds / MAX_CPU_SHARE)


class _Answer:
    """A picture and its bodies, which are encoded when a client first asks for them."""

    def __init__(self, began_at: float, judged: JudgedFleet, cost: _Cost, picture: LivePicture) -> None:
        self.began_at = began_at  # monotonic: its numbers are not older than this
        self._judged_at = judged.now  # seconds since the epoch
        self._not_known = judged.not_known
        self.picture = picture
        self.fresh_seconds = max(FRESH_SECONDS, cost.seconds_between)
        self._live: asyncio.Future[_Body] | None = None
        self._findings: asyncio.Future[_Body] | None = None

    async def live(self) -> _Body:
        if self._live is None:
            self._live = asyncio.ensure_future(asyncio.to_thread(_to_body, self.picture))
        return await asyncio.shield(self._live)

    async def findings(self) -> _Body:
        if self._findings is None:
            answer: FindingsAnswer = {
                "findings": with_costs(self.picture["findings"], self._judged_at),
                "not_known": [
                    {"kind": kind, "reason": shown_text(reason)}
                    for kind, reason in sorted(self._not_known.items())
                ],
            }
            self._findings = asyncio.ensure_future(asyncio.to_thread(_to_body, answer))
        return await asyncio.shield(self._findings)


def _to_body(document: LivePicture | FindingsAnswer) -> _Body:
    plain = orjson.dumps(document)
    compressor = zlib.compressobj(level=3, wbits=31)
    return _Body(plain, compressor.compress(plain) + compressor.flush())


def _with_cpu_seconds(work: Callable[[], T], turn: Turn) -> tuple[T, float]:
    """The result and the CPU time of this thread, which does not include waiting for other programs."""
    with turn():
        before = time.thread_time()
        return work(), time.thread_time() - before


class Watch(Protocol):
    """Finds what is missing from the current samples: `GoneWatch`, `UnreadGpus`."""

    async def find_missing(self, samples: Sequence[Sample]) -> Missing:
        """The samples are at least those of `PresenceSamples`."""
        ...


class LiveFleet:
    """While a new answer is made, clients get the last one, unless it is too old to show; then they wait
    together."""

    def __init__(
        self,
        read: ReadSamples,
        source: str,
        watch: Watch | None = None,
        judge: FleetJudge | None = None,
        checked: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
        turn: Turn = nullcontext,
    ) -> None:
        """`checked` waits for the first evaluation of the checks. Each step of a picture that keeps the
        interpreter busy runs in a `turn`."""
        self._checked = checked
        self._read = read
        self._pictures = LivePictures(source)
        self._watch = watch
        self._presence = PresenceSamples()
        self._judge = judge or FleetJudge()
        self._clock = clock
        self._turn = turn
        self._answer: _Answer | None = None
        self._cost_before = _Cost(0.0, 0.0)
        self._making: asyncio.Task[_Answer] | None = None
        self.finding_counts: Counter[str] | None = None
        """By kind, of the last picture; None before the first."""

    async def refresh(self) -> None:
        """Makes a picture, if the last one is old, also if no client asks."""
        await self._current()

    async def body(self, gzipped: bool) -> bytes:
        """The body of `/api/live`."""
        live = await (await self._current()).live()
        return live.gzipped if gzipped else live.plain

    async def findings_body(self, gzipped: bool) -> bytes:
        """The body of `/api/findings`."""
        findings = await (await self._current()).findings()
        return findings.gzipped if gzipped else findings.plain

    async def newest(self) -> LivePicture:
        """A fresh picture; waits for it where the last one is old."""
        answer = self._start_if_old(time.monotonic())
        if self._making is not None:
            answer = await asyncio.shield(self._making)
        assert answer is not None  # noqa: S101 - one that is not there is being made
        return answer.picture

    @property
    def seconds_to_next(self) -> float:
        """How long the last picture stays fresh."""
        answer = self._answer
        return 0.0 if answer is None else answer.began_at + answer.fresh_seconds - time.monotonic()

    async def _current(self) -> _Answer:
        now = time.monotonic()
        answer = self._start_if_old(now)
        if answer is None or now - answer.began_at > max(MAX_AGE_SECONDS, 2 * answer.fresh_seconds):
            assert self._making is not None  # noqa: S101 - an answer that old is not fresh
            # Shielded: a client that leaves must not take the answer away from the others.
            answer = await asyncio.shield(self._making)
        return answer

    def _start_if_old(self, now: float) -> _Answer | None:
        answer = self._answer
        if self._making is None and (answer is None or now - answer.began_at > answer.fresh_seconds):
            self._making = asyncio.create_task(self._make(now))
            self._making.add_done_callback(self._made)
        return answer

    async def _make(self, began_at: float) -> _Answer:
        cpu_before, missing = time.process_time(), NOTHING_MISSING
        read = await self._read()
        reading = time.monotonic() - began_at
        # The process's CPU time includes other threads, so the elapsed time is another upper bound.
        reading_cpu = min(reading, time.process_time() - cpu_before)
        sorting = 0.0
        if callable(read):
            samples, sorting = await asyncio.to_thread(_with_cpu_seconds, read, self._turn)
        else:
            samples = read
        if self._watch is not None:
            missing = await self._watch.find_missing(self._presence.select(samples))
        if self._checked is not None:
            await self._checked()

        def judge() -> tuple[JudgedFleet, LivePicture]:
            judged = self._judge.judge(samples, missing, self._clock())
            return judged, self._pictures.make(judged)

        (judged, picture), judging = await asyncio.to_thread(_with_cpu_seconds, judge, self._turn)
        self.finding_counts = Counter(finding.kind for finding in judged.findings)
        # The cheaper of the last two: the first update loads code and judges every node.
        cost = _Cost(reading, reading_cpu + sorting + judging)
        self._cost_before, before = cost, self._cost_before
        return _Answer(began_at, judged, min(cost, before, key=lambda one: one.seconds_between), picture)

    def _made(self, making: asyncio.Task[_Answer]) -> None:
        self._making = None
        # After a failure the next client tries again and gets the error, rather than ever older numbers.
        self._answer = None if making.cancelled() or making.exception() else making.result()


def with_costs(findings: Iterable[FindingJson], now: float) -> list[FindingJson]:
    """Most expensive first. The ledger has counted the cost until `cost_at`; it grows by `wasted_gpus`."""
    return sorted(
        (_cost_until(finding, now) for finding in findings),
        key=lambda finding: -(finding["cost_gpu_hours"] or 0.0),
    )


def _cost_until(finding: FindingJson, now: float) -> FindingJson:
    cost, gpus, at = finding["cost_gpu_hours"], finding["wasted_gpus"], finding["cost_at"]
    if cost is None or gpus is None or at is None:
        return finding
    return {
        **finding,
        "cost_gpu_hours": round(cost + gpus * max(0.0, now - at) / 3600, 3),
        "cost_at": max(at, now),
    }


class PushedTargets:
    """Nodes that send by remote write, as `/api/v1/targets` shows targets: nodes of the picture that are no
    targets of the scraper and that this process does not collect itself. Only the time of their last sample is
    known, neither a URL nor an interval."""

    def __init__(self, newest_picture: Callable[[], Awaitable[LivePicture]]) -> None:
        self._newest_picture = newest_picture

    async def targets_json(self, instances: Collection[str]) -> list[dict[str, Any]]:
        """Without the nodes of `instances`, which are targets of another kind."""
        try:
            picture = await self._newest_picture()
        except GpuscopeError:  # the page has the reason, and the other targets are known without the picture
            return []
        return [_target_json(node) for node in picture["nodes"] if node["instance"] not in instances]


def _target_json(node: LiveNode) -> dict[str, Any]:
    last_sample = node["gone"]["since"] if "gone" in node else node.get("taken_at", 0.0)
    is_silent = "gone" in node or node["stale"]
    labels = {"job": node.get("job", ""), "instance": node["instance"]}
    return {
        "discoveredLabels": labels,
        "labels": labels,
        "scrapePool": labels["job"],
        "scrapeUrl": "",
        "globalUrl": "",
        "lastError": f"no sample since {to_rfc3339(last_sample)}" if is_silent else "",
        "lastScrape": to_rfc3339(last_sample),
        "lastScrapeDuration": 0,
        "health": "down" if is_silent else "up",
        "scrapeInterval": "",
        "scrapeTimeout": "",
    }
