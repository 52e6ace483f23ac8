"""Builds and runs remote write out: one queue and one thread for each receiver.

`Pushes` is the sink that a server's appenders write to as well; `AgentPush` listens to a collector and sends
its families every `remote_write_interval`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuscope.collect.collector import Collector
from gpuscope.metrics.families import Builder, load_family
from gpuscope.metrics.sample import MetricFamily
from gpuscope.readings import Snapshot
from gpuscope.scrape.http_config import HttpConfig, load_http_config, split_credentials
from gpuscope.scrape.http_post import PostClient
from gpuscope.scrape.push import RemoteWriteQueue
from gpuscope.scrape.push_families import FamilyPusher
from gpuscope.settings import Settings

AGENT_QUEUE_BYTES = 4 << 20
"""About twenty minutes of a busy machine; the agent's whole budget is 40 MiB."""


class Pushes:
    """All receivers, with their threads. A sink for the server's appenders: one encoding for all of them."""

    def __init__(self, queues: Sequence[RemoteWriteQueue]) -> None:
        self.queues = queues
        self._threads = [
            threading.Thread(target=queue.run, name="gpuscope-remote-write", daemon=True) for queue in queues
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for queue in self.queues:
            queue.stop()
        for thread in self._threads:
            thread.join(timeout=5.0)  # a receiver that hangs must not keep us from stopping

    def encode_labels(self, labels: Iterable[tuple[str, str]]) -> bytes:
        return self.queues[0].encode_labels(labels)

    def take(self, samples: Iterable[tuple[bytes, int, float]]) -> None:
        every = list(samples)
        for queue in self.queues:
            queue.take(every)

    def families(self) -> Iterator[MetricFamily]:
        """One family for all receivers, as the text format wants it."""
        merged: dict[str, MetricFamily] = {}
        for queue in self.queues:
            for family in queue.families():
                known = merged.get(family.name)
                samples = [*known.samples, *family.samples] if known else family.samples
                merged[family.name] = MetricFamily(family.name, family.type, family.help, samples)
        yield from merged.values()


def build_pushes(
    settings: Settings,
    external_labels: Mapping[str, str] | None = None,
    also: Sequence[tuple[str, HttpConfig]] = (),
    **queue_options: int,
) -> Pushes | None:
    """From `--remote-write` and what a configuration file names; None if nobody wants samples."""
    http = HttpConfig()
    if settings.remote_write_http_config:
        http = load_http_config(Path(settings.remote_write_http_config).expanduser())
    named = [split_credentials(url, http, f"--remote-write {url}") for url in settings.remote_write]
    queues = [
        RemoteWriteQueue(url, PostClient(url, one), external_labels, **queue_options)  # type: ignore[arg-type]
        for url, one in (*named, *also)
    ]
    return Pushes(queues) if queues else None


class AgentPush:
    """A collector's listener. Builds families of its own: those of the listeners belong to their threads."""

    def __init__(self, settings: Settings, pushes: Pushes, builders: Sequence[Builder]) -> None:
        self._builders = builders
        self._every = settings.remote_write_interval
        self._next_at = 0.0
        self.pushes = pushes
        labels = {"job": "gpuscope", "instance": settings.node_name()}
        self._pusher = FamilyPusher(pushes, labels)

    def take(self, snapshot: Snapshot) -> None:
        # Half a second of tolerance: snapshots come on a beat of their own.
        if snapshot.taken_at < self._next_at - 0.5:
            return
        self._next_at = snapshot.taken_at + self._every
        families = [family for builder in self._builders for family in builder.to_families(snapshot)]
        self._pusher.push(families, int(snapshot.taken_at * 1000))

    def to_families(self, snapshot: Snapshot) -> list[MetricFamily]:
        """As a `Builder`: what the queues count, for the agent's own exposition."""
        return list(self.pushes.families())


@contextmanager
def pushing(settings: Settings, collector: Collector, families: Collection[str]) -> Iterator[AgentPush | None]:
    """Around an agent's life: sends these families where `--remote-write` says; nothing without it."""
    pushes = build_pushes(settings, queue_bytes=AGENT_QUEUE_BYTES)
    if pushes is None:
        yield None
        return
    push = AgentPush(settings, pushes, [load_family(name).build(settings) for name in sorted(families)])
    collector.subscribe(push.take)
    pushes.start()
    try:
        yield push
    finally:
        pushes.stop()
