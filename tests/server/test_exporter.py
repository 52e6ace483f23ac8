from __future__ import annotations

import asyncio
import gzip
import weakref
from collections.abc import Iterator

import pytest

from gpuscope.agent.families.native.builder import AgentMetrics
from gpuscope.model.exposition.sample import NO_LABELS, MetricFamily, Sample
from gpuscope.model.readings import Snapshot, SourceStatus
from gpuscope.serve.exporter import Exporter, prefers_openmetrics
from gpuscope.serve.http.messages import Request, Response
from tests.fakes import gpu

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


class Counting:
    def __init__(self) -> None:
        self.built = 0

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        self.built += 1
        yield MetricFamily("m_total", "counter", "h", [Sample(NO_LABELS, self.built)])


def get(exporter: Exporter, path: str = "/metrics", **headers: str) -> Response:
    request = Request("GET", path, [(name.replace("_", "-"), value) for name, value in headers.items()])

    async def respond() -> Response:
        return await exporter.handler()(request)

    return asyncio.run(respond())


def snapshot(*devices: object, **more: object) -> Snapshot:
    return Snapshot(node="n", taken_at=1.0, devices=devices, **more)  # type: ignore[arg-type]


def test_a_snapshot_is_rendered_once() -> None:
    builder = Counting()
    exporter = Exporter([builder], openmetrics=True, title="t")
    exporter.publish(snapshot())
    assert get(exporter).body == get(exporter).body == b"# HELP m_total h\n# TYPE m_total counter\nm_total 1\n"
    assert builder.built == 1
    exporter.publish(snapshot())
    assert get(exporter).body.endswith(b"m_total 2\n")


def test_a_scrape_before_the_first_snapshot_is_503() -> None:
    assert get(Exporter([Counting()], openmetrics=False, title="t")).status == 503


def test_gzip_if_accepted() -> None:
    exporter = Exporter([Counting()], openmetrics=False, title="t")
    exporter.publish(snapshot())
    answer = get(exporter, accept_encoding="gzip, deflate")
    assert ("content-encoding", "gzip") in answer.headers
    assert gzip.decompress(answer.body) == get(exporter).body


@pytest.mark.parametrize(
    ("accept", "open_metrics"),
    [
        (PROMETHEUS_3, True),
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=x,;;,=", False),
    ],
)
def test_content_negotiation(accept: str, open_metrics: bool) -> None:
    assert prefers_openmetrics(accept) is open_metrics


def test_a_compat_exporter_never_serves_openmetrics() -> None:
    exporter = Exporter([Counting()], openmetrics=False, title="t")
    exporter.publish(snapshot())
    assert get(exporter, accept=PROMETHEUS_3).content_type.startswith("text/plain; version=0.0.4")


def test_ready_needs_fresh_gpu_data_and_names_the_reason() -> None:
    exporter = Exporter([Counting()], openmetrics=False, title="t")
    assert get(exporter, "/-/ready").status == 503
    down = SourceStatus(name="nvml", up=False, why="the driver is not loaded")
    exporter.publish(snapshot(gpu(lost=True), sources=(down,)))
    answer = get(exporter, "/-/ready")
    assert answer.status == 503
    assert b"the driver is not loaded" in answer.body
    exporter.publish(snapshot(gpu()))
    assert get(exporter, "/-/ready").body == b"ready\n"
    assert get(exporter, "/-/healthy").status == 200


def test_a_ready_agent_names_the_sources_that_are_down() -> None:
    """GPUs are read: it must stay in service; but what is missing is said where a probe looks."""
    exporter = Exporter([Counting()], openmetrics=False, title="t")
    down = SourceStatus(name="kubelet", up=False, why="the socket is not mounted")
    fine = SourceStatus(name="nvml", up=True, why="GPUs")
    exporter.publish(snapshot(gpu(), sources=(fine, down)))
    answer = get(exporter, "/-/ready")
    assert answer.status == 200
    assert answer.body == b"ready, but a source is down. kubelet: the socket is not mounted\n"


def test_the_landing_page_escapes_and_says_simulated() -> None:
    exporter = Exporter([Counting()], openmetrics=False, title="t")
    status = SourceStatus(name="<img src=x>", up=True, why="<script>")
    exporter.publish(snapshot(sources=(status,), simulated=True))
    page = get(exporter, "/").body
    assert b"Simulated GPUs" in page
    assert b"<script>" not in page
    assert b"<img" not in page


class Slow(Counting):
    def __init__(self, now: list[float], seconds: float) -> None:
        super().__init__()
        self._now, self._seconds = now, seconds

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        self._now[0] += self._seconds
        return super().to_families(snapshot)


def scraped_every(seconds: int, build_seconds: float = 0.0, **kinds: bool) -> tuple[int, int]:
    """How many of the 120 snapshots of two minutes are built, and how many of them within a scrape."""
    now, in_scrapes = [0.0], 0
    builder = Slow(now, build_seconds)
    exporter = Exporter([builder], openmetrics=False, title="t", clock=lambda: now[0], **kinds)
    for second in range(120):
        now[0] = second
        exporter.publish(snapshot())
        if second % seconds == 0:
            now[0] = second + 0.4
            before = builder.built
            assert get(exporter).status == 200
            in_scrapes += builder.built - before
    return builder.built, in_scrapes


def test_snapshots_that_nobody_asks_for_are_not_built() -> None:
    """The first snapshot shows how long it takes; the second scrape builds; then each is foretold."""
    assert scraped_every(15, on_demand=True) == (8, 1)
    assert scraped_every(1, on_demand=True) == (120, 1)


def test_a_snapshot_that_takes_long_is_built_ahead() -> None:
    """A request that builds it would keep the others waiting."""
    assert scraped_every(15, build_seconds=0.1, on_demand=True) == (120, 0)


def test_a_builder_that_counts_sees_every_snapshot() -> None:
    assert scraped_every(15) == (120, 0)


class KeptSamples(list[Sample]):
    """A list that a weak reference can point to."""


class OneFamily:
    def __init__(self) -> None:
        self.samples = KeptSamples([Sample(NO_LABELS, 1.0)])

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        yield MetricFamily("m", "gauge", "h", self.samples)


def test_a_format_that_is_not_requested_any_more_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = OneFamily()
    exporter = Exporter([builder], openmetrics=True, title="t")
    exporter.publish(snapshot())
    before = get(exporter).body
    samples = weakref.ref(builder.samples)
    monkeypatch.setattr("gpuscope.serve.exporter.RECENT_SECONDS", -3600.0)
    builder.samples = KeptSamples([Sample(NO_LABELS, 2.0)])
    exporter.publish(snapshot())
    assert samples() is None
    assert get(exporter).body == before.replace(b"m 1", b"m 2")


def test_the_age_of_a_snapshot_grows_until_it_is_served() -> None:
    """Also compressed and as OpenMetrics, whose last line is `# EOF`."""
    now = [1000.0]
    exporter = Exporter([AgentMetrics()], openmetrics=True, title="t", clock=lambda: now[0])
    exporter.publish(snapshot())
    assert b"gpuscope_agent_snapshot_age_seconds 0\n" in get(exporter).body
    now[0] += 90.25
    answer = get(exporter, accept_encoding="gzip", accept=PROMETHEUS_3)
    assert gzip.decompress(answer.body).endswith(b"\ngpuscope_agent_snapshot_age_seconds 90.25\n# EOF\n")
    now[0] += 10
    assert b"gpuscope_agent_snapshot_age_seconds 100.25\n" in get(exporter).body
    assert b"gpuscope_agent_snapshot_age_seconds 100.25\n" in exporter.exposition(), "as in a text file"
