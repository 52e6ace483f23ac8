"""Starts the threads of remote write: one for each receiver."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings
from gpuscope.history.remote_write.sender import (
    AGENT_QUEUE_BYTES,
    RemoteWriteQueues,
    SnapshotSender,
    build_queues,
)

if TYPE_CHECKING:  # a server that collects nothing itself does not need it
    from gpuscope.agent.collect.collector import Collector

STOP_SECONDS = 5.0
"""A receiver that hangs must not keep the process from stopping."""


@contextmanager
def sending(queues: RemoteWriteQueues | None) -> Iterator[None]:
    """Sends in the background; at the end, once more what is left."""
    threads = [
        threading.Thread(target=queue.run, name="gpuscope-remote-write", daemon=True)
        for queue in (queues.queues if queues else ())
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        if queues is not None:
            queues.stop()
        for thread in threads:
            thread.join(timeout=STOP_SECONDS)


@contextmanager
def sending_snapshots(
    settings: Settings, collector: Collector, families: Collection[str]
) -> Iterator[SnapshotSender | None]:
    """Sends an agent's metric families to `--remote-write`; None without it."""
    queues = build_queues(settings, queue_bytes=AGENT_QUEUE_BYTES)
    if queues is None:
        yield None
        return
    sender = SnapshotSender(settings, queues, [load_family(name).build(settings) for name in sorted(families)])
    collector.subscribe(sender.take)
    with sending(queues):
        yield sender
