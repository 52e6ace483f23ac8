"""An agent's remote write: listens to a collector and sends its families every `remote_write_interval`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from gpuscope.collect.collector import Collector
from gpuscope.metrics.families import Builder, load_family
from gpuscope.metrics.sample import MetricFamily
from gpuscope.readings import Snapshot
from gpuscope.remote_write.family_sender import FamilyPusher
from gpuscope.settings import Settings
from gpuscope.wiring.remote_write import Pushes, build_pushes

AGENT_QUEUE_BYTES = 4 << 20
"""About twenty minutes of a busy machine; the agent's whole budget is 40 MiB."""


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
