"""An exporter's HTTP pages: `/metrics` from the latest snapshot, health checks, and a landing page.

Each snapshot is rendered at most once per format: when it is published, off the scrape path, if a scrape is due
before the next one; else on the first request. Most snapshots of an agent are never asked for. Only its age is
rendered for each request.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpuscope import __version__
from gpuscope.agent.families import Builder
from gpuscope.base.limits import LIMITS_REACHED, Limits, limit_names
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.model.exposition.text import (
    OPENMETRICS_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    Encoder,
    encode_text,
    openmetrics_encoder,
    text_encoder,
)
from gpuscope.model.readings import Snapshot
from gpuscope.serve.http.messages import Handler, Request, Response, Route, Router, text

# When the next request is due, from the times of those before: a scraper comes at a fixed interval.
#
# A third request is expected as long after the second as that came after the first. With several scrapers
# some expected requests do not come, which costs a rendering each; a request that was not expected is
# rendered when it arrives.

MAX_TIMES: Final = 8
MIN_APART_SECONDS: Final = 0.5
"""Closer requests get the same snapshot."""
SLACK_SECONDS: Final = 0.3


class RequestRhythm:
    """`record` and `is_due` may run in different threads."""

    def __init__(self) -> None:
        self._times: tuple[float, ...] = ()

    def record(self, at: float) -> None:
        if not self._times or at - self._times[-1] >= MIN_APART_SECONDS:
            self._times = (*self._times, at)[-MAX_TIMES:]

    def is_due(self, start: float, end: float) -> bool:
        """Whether a request is due between the two times, or a little before or after."""
        times = self._times
        return any(
            start - SLACK_SECONDS <= 2 * later - earlier < end + SLACK_SECONDS
            for number, later in enumerate(times)
            for earlier in times[:number]
        )


SNAPSHOT_AGE: Final = "gpuscope_agent_snapshot_age_seconds"

RECENT_SECONDS = 300.0
MAX_ON_DEMAND_SECONDS = 0.05
"""What takes longer, as Slurm with thousands of jobs, is built ahead: a request would block the others."""


class _Gzipped:
    """A compressed body to which a different tail is added for each request."""

    def __init__(self, body: bytes) -> None:
        # Level 1 is 2.5 times as fast as level 4 and 10 % larger; nearly every scrape has a new snapshot.
        self._compressor = zlib.compressobj(level=1, wbits=31)
        self._bytes = self._compressor.compress(body)

    def with_tail(self, tail: bytes) -> bytes:
        compressor = self._compressor.copy()
        return self._bytes + compressor.compress(tail) + compressor.flush()


@dataclass(slots=True)
class _Rendering:
    """One format's bytes for the latest snapshot."""

    content_type: str
    encoder: Encoder
    body: bytes | None = None
    """Without its end: what is made when it is served follows."""
    gzipped: _Gzipped | None = None
    requested_at: float = float("-inf")
    rhythm: RequestRhythm = field(default_factory=RequestRhythm)

    def request(self, at: float) -> None:
        self.requested_at = at
        self.rhythm.record(at)

    def tail(self, families: Iterable[MetricFamily]) -> bytes:
        return b"".join((*(self.encoder.block(family) for family in families), self.encoder.end))


@dataclass(slots=True)
class _Latest:
    snapshot: Snapshot | None = None
    families: list[MetricFamily] | None = None
    """None: not built yet. Without its age, which changes while it is served."""
    at: float = 0.0
    """When it was published."""


class Exporter:
    """Serves the last published snapshot. Thread-safe."""

    def __init__(
        self,
        builders: Sequence[Builder],
        *,
        openmetrics: bool,
        title: str,
        needs_gpus: bool = True,
        on_demand: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_demand`: the builders need no snapshot but those that are rendered."""
        self._builders = builders
        self._title = title
        self._needs_gpus = needs_gpus
        self._on_demand = on_demand
        self._clock = clock
        self._text = _Rendering(TEXT_CONTENT_TYPE, text_encoder())
        self._openmetrics = _Rendering(OPENMETRICS_CONTENT_TYPE, openmetrics_encoder()) if openmetrics else None
        self._latest = _Latest()
        self._ages: list[MetricFamily] = []
        """The metric of the snapshot's age, where a builder gives one."""
        self._published_at: float | None = None
        self._build_seconds = float("inf")
        """Of the last snapshot that was built; the first one is always."""
        self._lock = threading.Lock()
        self._build_lock = threading.Lock()

    def publish(self, snapshot: Snapshot) -> None:
        now = self._clock()
        until = now if self._published_at is None else 2 * now - self._published_at
        self._published_at = now
        renderings = [rendering for rendering in (self._text, self._openmetrics) if rendering is not None]
        is_slow = self._build_seconds > MAX_ON_DEMAND_SECONDS
        due = [
            rendering.rhythm.is_due(now, until) or (is_slow and now - rendering.requested_at <= RECENT_SECONDS)
            for rendering in renderings
        ]
        families = self._build(snapshot) if any(due) or is_slow or not self._on_demand else None
        bodies = [
            rendering.encoder.encode_part(families) if is_due and families is not None else None
            for rendering, is_due in zip(renderings, due, strict=True)
        ]
        with self._lock:
            self._latest = _Latest(snapshot, families, now)
            for rendering, body in zip(renderings, bodies, strict=True):
                rendering.body, rendering.gzipped = body, None
                if now - rendering.requested_at > RECENT_SECONDS:
                    rendering.encoder.forget()

    def _build(self, snapshot: Snapshot) -> list[MetricFamily]:
        with self._build_lock:  # a request may build while the next snapshot is published
            began = self._clock()
            built = [family for builder in self._builders for family in builder.to_families(snapshot)]
            self._ages = [family for family in built if family.name == SNAPSHOT_AGE]
            self._build_seconds = self._clock() - began
            return [family for family in built if family.name != SNAPSHOT_AGE]

    def _families(self) -> list[MetricFamily]:
        """Of the latest snapshot."""
        latest = self._latest
        if latest.families is None:
            latest.families = [] if latest.snapshot is None else self._build(latest.snapshot)
        return latest.families

    def handler(self, metrics_path: str = "/metrics", probes: Sequence[str] = ()) -> Handler:
        """`probes` are further paths that return OK while the process runs."""

        async def landing(request: Request) -> Response:
            return self._landing(metrics_path)

        routes = [
            Route("/", landing),
            Route(metrics_path, self._metrics),
            Route("/-/healthy", _healthy),
            Route("/-/ready", self._ready),
            *(Route(path, _alive) for path in probes),
        ]
        known = ", ".join(sorted(route.path for route in routes))

        async def fallback(request: Request) -> Response:
            return text(f"not found; the paths here are {known}", 404)

        return Router(routes, fallback)

    def exposition(self) -> bytes:
        """The latest snapshot in text format, for `--once` and for text files."""
        return encode_text([*self._families(), *self._families_of_now()])

    async def _metrics(self, request: Request) -> Response:
        rendering = self._text
        if self._openmetrics is not None and prefers_openmetrics(request.header("accept")):
            rendering = self._openmetrics
        rendering.request(self._clock())
        with self._lock:
            if self._latest.snapshot is None:
                return text("no snapshot yet", 503)
            if rendering.body is None:
                rendering.body = rendering.encoder.encode_part(self._families())
            tail = rendering.tail(self._families_of_now())
            if "gzip" not in request.header("accept-encoding"):
                return Response(rendering.body + tail, content_type=rendering.content_type)
            if rendering.gzipped is None:
                rendering.gzipped = _Gzipped(rendering.body)
            headers = (("content-encoding", "gzip"), ("vary", "accept-encoding"))
            body = rendering.gzipped.with_tail(tail)
            return Response(body, content_type=rendering.content_type, headers=headers)

    def _families_of_now(self) -> Iterable[MetricFamily]:
        seconds = round(self._clock() - self._latest.at, 3)
        for age in self._ages:
            yield replace(age, samples=[Sample(NO_LABELS, seconds)])

    async def _ready(self, request: Request) -> Response:
        snapshot = self._latest.snapshot
        reasons = [f"{s.name}: {s.why}" for s in snapshot.sources if not s.up] if snapshot else []
        if snapshot is not None and (not self._needs_gpus or any(not d.lost for d in snapshot.devices)):
            return text("ready, but a source is down. " + " ".join(reasons) if reasons else "ready")
        return text("no fresh GPU data. " + " ".join(reasons), 503)

    def _landing(self, metrics_path: str) -> Response:
        import html  # here, because its table of entities is 0.3 MiB that an agent seldom needs

        snapshot = self._latest.snapshot
        rows = "".join(
            f"<tr><td>{html.escape(s.name)}<td>{'up' if s.up else 'down'}<td>{html.escape(s.why)}"
            for s in (snapshot.sources if snapshot else ())
        )
        simulated = "<p><strong>Simulated GPUs.</strong></p>" if snapshot and snapshot.simulated else ""
        gpus = len(snapshot.devices) if snapshot else 0
        title = html.escape(self._title)
        page = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;margin:2rem;max-width:60rem}}td{{padding-right:1.5rem}}</style>
<h1>{title}</h1>{simulated}
<p>gpuscope {__version__}, {gpus} GPUs. <a href="{html.escape(metrics_path)}">Metrics</a>,
<a href="/-/ready">ready?</a>, <a href="/-/healthy">healthy?</a></p><table>{rows}</table></html>"""
        return Response(page.encode("utf-8", "replace"), content_type="text/html; charset=utf-8")


async def _healthy(request: Request) -> Response:
    return text("healthy")


async def _alive(request: Request) -> Response:
    return Response(b"OK")


def prefers_openmetrics(accept: str) -> bool:
    """True if OpenMetrics 1.0 is acceptable with at least the quality of plain text."""
    quality = {"openmetrics": 0.0, "plain": 0.0}
    for part in accept.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = {key: value for key, _, value in (p.partition("=") for p in parameters)}
        try:
            q = float(options.get("q", "1"))
        except ValueError:
            continue
        if media == "application/openmetrics-text" and options.get("version", "1.0.0") == "1.0.0":
            quality["openmetrics"] = max(quality["openmetrics"], q)
        elif media in ("text/plain", "*/*", "text/*"):
            quality["plain"] = max(quality["plain"], q)
    return quality["openmetrics"] > 0 and quality["openmetrics"] >= quality["plain"]


# Metrics for the limits in force and how often each was reached.
#
# Separate from `own_metrics`, because the agent exports them too and must not import the store. The default
# of `max_series` is computed at start, so the caller passes it; without it, that limit has no sample.


def limit_families(limits: Limits, *groups: str, max_series: int | None = None) -> Iterator[MetricFamily]:
    """The limits of these groups, or of all groups; `max_series` is the store's effective value."""
    names = limit_names(*groups)
    values = {name: getattr(limits, name) for name in names}
    if max_series is not None and "max_series" in values:
        values["max_series"] = max_series
    reached = LIMITS_REACHED.counts()
    yield MetricFamily(
        "gpuscope_limit",
        "gauge",
        "The limits in force, in bytes, seconds or items; docs/security.md explains each.",
        [Sample(LabelSet((("limit", name),)), value) for name, value in values.items() if value is not None],
    )
    yield MetricFamily(
        "gpuscope_limit_reached_total",
        "counter",
        "How often this limit was reached.",
        [Sample(LabelSet((("limit", name),)), reached[name]) for name in names],
    )


class HttpLimitBuilder:
    """A `Builder` for the limits of HTTP listeners, used by the agent."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def to_families(self, snapshot: Snapshot) -> list[MetricFamily]:
        return list(limit_families(self._limits, "http"))
