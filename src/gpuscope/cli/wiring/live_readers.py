"""Readers of the live picture for the terminal: from a server, from an agent's metrics, or from this machine.

A reader gives a document in the format of `/api/live`. One of this machine also has its NVLink `links`; a
server's is as the server sends it. `find_running` looks for an agent or a server on this machine, so that a
snapshot need not wait for a driver.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from gpuscope.agent.collect.collector import Collector
from gpuscope.agent.families.host.builder import HostFamily
from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.agent.families.native.slurm_table import QUEUE_METRICS
from gpuscope.agent.families.selection import MetricSelection
from gpuscope.base.errors import GpuscopeError
from gpuscope.cli.wiring.live_client import LiveClient
from gpuscope.cli.wiring.run_agent import CollectorThreads
from gpuscope.judge.checks.checks import CHECKED_METRICS
from gpuscope.judge.checks.facts import NOTHING_MISSING, Sample
from gpuscope.model.exposition.parser import SeriesCache
from gpuscope.model.exposition.series_text import ParseError
from gpuscope.model.readings import Snapshot
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.fleet_samples import LIVE_METRICS, by_node
from gpuscope.serve.live.picture import live_picture
from gpuscope.serve.live.sample_judge import SampleJudge

# The live picture of this machine from a collector of this process: no agent and no server is needed.


class OwnReader:
    """`read` makes a new snapshot; the workers of the sources run in threads of their own until `close`."""

    is_local = True
    origin = ""

    def __init__(self, collector: Collector) -> None:
        self._threads = CollectorThreads(collector)
        only = MetricSelection(SHOWN_METRICS)
        self._builders = (NativeBuilder(only), HostFamily(only))
        self._judge = SampleJudge()
        self._fleet = FleetJudge(self._judge)
        self._started = False

    @property
    def collector(self) -> Collector:
        return self._threads.collector

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._threads.start_workers()

    def read(self) -> Picture:
        self.start()
        return self.to_picture(self.collector.tick())

    def read_twice(self, seconds_apart: float, max_seconds: float) -> Picture:
        """For one-shot commands: some numbers need two readings."""
        self.start()
        self.collector.tick()
        threading.Event().wait(seconds_apart)
        self.collector.tick()
        self.collector.finish_reading(max_seconds)
        return self.to_picture(self.collector.snapshot)

    def to_picture(self, snapshot: Snapshot) -> Picture:
        samples = list(self._samples(snapshot))
        now = snapshot.taken_at
        picture = dict(to_picture(samples, self._judge, self._fleet, now=now, source="this machine"))
        affinities = ((device.uuid, device.memory_affinity) for device in snapshot.devices)
        picture["numa"] = {uuid: str(sorted(words.items())) for uuid, words in affinities if words}
        if not any(not device.lost for device in snapshot.devices):
            down = [f"{status.name}: {status.why}" for status in snapshot.sources if not status.up]
            picture["notes"] = ["no GPU readable; run `gpuscope doctor` for details", *down]
        return picture

    def close(self) -> None:
        if self._started:
            self._threads.stop()

    def _samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        for builder in self._builders:
            for family in builder.to_families(snapshot):
                for labels, value in family.samples:
                    yield family.name, {**dict(labels.pairs), "instance": snapshot.node}, value


Picture = Mapping[str, Any]
Clock = Callable[[], float]

AGENT_URL: Final = "http://127.0.0.1:9400"
SERVER_URL: Final = "http://127.0.0.1:9470"
PROBE_SECONDS: Final = 1.0
"""An agent on this machine answers in milliseconds; one that hangs must not keep us from reading the driver."""
LINK_METRIC: Final = "gpuscope_gpu_p2p_nvlink_status"
_LINKED: Final = 0.0
_PCI_ADDRESS: Final = re.compile(r"(?:[0-9A-Fa-f]{4})?([0-9A-Fa-f]{4}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
"""NVML writes the domain with eight digits, sysfs with four."""
SHOWN_METRICS: Final = frozenset((*LIVE_METRICS, LINK_METRIC, *QUEUE_METRICS, *CHECKED_METRICS))
QUEUE_SECONDS: Final = 10.0
"""Interval of requests for Slurm's queue, which the server reads every 15 seconds."""


class LiveReader(Protocol):
    origin: str
    """For the title line; empty for this machine."""
    is_local: bool
    """Whether the processes are those of this machine."""

    def read(self) -> Picture: ...

    def close(self) -> None: ...


class ServerReader:
    """The fleet of a gpuscope server."""

    is_local = False

    def __init__(self, client: LiveClient, *, with_placement: bool = False, with_queue: bool = False) -> None:
        """`with_placement` asks for NVLink peers, `with_queue` for Slurm's queue; `/api/live` has neither."""
        self._client = client
        self._with_placement = with_placement
        self._with_queue = with_queue
        self._queue: list[Sample] = []
        self._queue_at = float("-inf")
        self.origin = client.url

    def read(self) -> Picture:
        picture = self._client.get_json("/api/live")
        if not isinstance(picture, dict):
            raise GpuscopeError(f"{self.origin}/api/live: not a JSON object; is it a gpuscope server?")
        if self._with_placement:
            found = self._client.query(LINK_METRIC)
            picture["links"] = links((LINK_METRIC, labels, value) for labels, value in found)
        picture["slurm"] = self._read_queue() if self._with_queue else []
        return picture

    def _read_queue(self) -> list[Sample]:
        """Empty if the server does not answer; GPUs are still shown."""
        if time.monotonic() - self._queue_at > QUEUE_SECONDS:
            self._queue_at = time.monotonic()
            try:
                found = self._client.query(f'{{__name__=~"{"|".join(QUEUE_METRICS)}"}}')
            except GpuscopeError:
                found = []
            self._queue = [(labels.get("__name__", ""), labels, value) for labels, value in found]
        return self._queue

    def close(self) -> None:
        self._client.close()


class AgentReader:
    """One machine, from its agent's `/metrics`."""

    def __init__(self, client: LiveClient, *, is_local: bool, clock: Clock = time.time) -> None:
        self._client = client
        self._judge = SampleJudge()
        self._fleet = FleetJudge(self._judge)
        self._clock = clock
        self._series: list[tuple[str, Mapping[str, str]]] = []
        self._cache = SeriesCache(self._remember)
        self.is_local = is_local
        self.origin = f"agent {client.url}"

    def read(self) -> Picture:
        body = self._client.get("/metrics")
        try:
            found = self._cache.parse(body)
        except ParseError as error:
            raise GpuscopeError(f"{self._client.url}/metrics cannot be read: {error}") from None
        samples = [(*self._series[i], value) for i, value in zip(found.ids, found.values, strict=True)]
        picture = dict(to_picture(samples, self._judge, self._fleet, now=self._clock(), source=self.origin))
        if self.is_local:
            picture["numa"] = numa_nodes(samples)
        return picture

    def close(self) -> None:
        self._client.close()

    def _remember(self, pairs: Sequence[tuple[str, str]]) -> int | None:
        labels = dict(pairs)
        name = labels.pop("__name__", "")
        if name not in SHOWN_METRICS:
            return None
        labels.setdefault("instance", "")  # an agent's own text has none
        self._series.append((name, labels))
        return len(self._series) - 1


class _WithFirst:
    """A reader whose first picture is already there: it was read to see whether the reader is the right one."""

    def __init__(self, reader: LiveReader, first: Picture) -> None:
        self._reader = reader
        self._first: Picture | None = first
        self.origin = reader.origin
        self.is_local = True

    def read(self) -> Picture:
        first, self._first = self._first, None
        return self._reader.read() if first is None else first

    def close(self) -> None:
        self._reader.close()


def find_running(node: str, *, clock: Clock = time.time) -> LiveReader | None:
    """The agent or server on this machine that knows `node`; None if none answers."""
    readers: tuple[LiveReader, ...] = (
        AgentReader(LiveClient(AGENT_URL, timeout_seconds=PROBE_SECONDS), is_local=True, clock=clock),
        ServerReader(LiveClient(SERVER_URL, timeout_seconds=PROBE_SECONDS)),
    )
    for reader in readers:  # a reader connects when it reads
        try:
            picture = reader.read()
        except GpuscopeError:  # none there, another program's port, or a login
            reader.close()
            continue
        # A demo on this machine shows other GPUs than this machine's.
        if not picture.get("simulated") and _has_fresh_node(picture, node):
            return _WithFirst(reader, picture)
        reader.close()
    return None


def _has_fresh_node(picture: Picture, node: str) -> bool:
    return any(known.get("name") == node and not known.get("stale") for known in picture.get("nodes", ()))


def to_picture(
    samples: Sequence[Sample], judge: SampleJudge, fleet: FleetJudge, *, now: float, source: str
) -> Picture:
    """The document of `/api/live` for one machine's samples. `judge` remembers since when a finding lasts."""
    judge.add(samples, now)
    judged = fleet.judge(by_node(samples), NOTHING_MISSING, now)
    picture = dict(live_picture(judged, source))
    picture["links"] = links(samples)
    picture["slurm"] = [sample for sample in samples if sample[0] in QUEUE_METRICS]
    return picture


def links(samples: Iterable[Sample]) -> dict[str, list[str]]:
    """Indices of the GPUs on the same node that a GPU reaches over NVLink, by UUID."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, labels, status in samples:
        if name == LINK_METRIC and status == _LINKED:
            found[labels.get("uuid", "")].append(labels.get("peer", ""))
    return dict(found)


def numa_nodes(samples: Iterable[Sample], sysfs: str = "/sys") -> dict[str, str]:
    """NUMA node of this machine's GPUs by UUID, from the kernel; absent where it does not know."""
    found: dict[str, str] = {}
    for name, labels, _ in samples:
        address = _PCI_ADDRESS.fullmatch(labels.get("pci_bus_id", "")) if name == "gpuscope_gpu_info" else None
        if address is None:
            continue
        path = Path(sysfs, "bus/pci/devices", f"{address[1]}:{address[2]}".lower(), "numa_node")
        try:
            node = path.read_text().strip()
        except OSError:
            continue
        if node != "-1":  # a machine without NUMA
            found[labels.get("uuid", "")] = node
    return found
