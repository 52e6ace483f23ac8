"""All receivers of remote write: samples are encoded once and put into the queue of each.

`RemoteWriteQueues` is the sink that a server's appenders and an agent's `SnapshotSender` write to. The wiring
starts a thread for each queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuscope.base.http_config import HttpConfig, load_http_config, split_credentials
from gpuscope.base.settings import Settings, home_file
from gpuscope.history.remote_write.http_post import PostClient
from gpuscope.history.remote_write.sender import QUEUE_BYTES, RemoteWriteQueue
from gpuscope.model.exposition.sample import MetricFamily


class RemoteWriteQueues:
    """At least one."""

    def __init__(self, queues: Sequence[RemoteWriteQueue]) -> None:
        self.queues = queues

    def stop(self) -> None:
        for queue in self.queues:
            queue.stop()

    def encode_labels(self, labels: Iterable[tuple[str, str]]) -> bytes:
        return self.queues[0].encode_labels(labels)

    def take(self, samples: Iterable[tuple[bytes, int, float]]) -> None:
        encoded = list(samples)
        for queue in self.queues:
            queue.take(encoded)

    def families(self) -> Iterator[MetricFamily]:
        """One family with the samples of all receivers, as the text format requires."""
        merged: dict[str, MetricFamily] = {}
        for queue in self.queues:
            for family in queue.families():
                known = merged.get(family.name)
                samples = [*known.samples, *family.samples] if known else family.samples
                merged[family.name] = MetricFamily(family.name, family.type, family.help, samples)
        yield from merged.values()


def build_queues(
    settings: Settings,
    external_labels: Mapping[str, str] | None = None,
    configured: Sequence[tuple[str, HttpConfig]] = (),
    *,
    queue_bytes: int = QUEUE_BYTES,
) -> RemoteWriteQueues | None:
    """Of `--remote-write` and of the receivers in a configuration file; None if there are none."""
    http = HttpConfig()
    if settings.remote_write_http_config:
        http = load_http_config(home_file(settings.remote_write_http_config, "remote_write_http_config"))
    given = [split_credentials(url, http, f"--remote-write {url}") for url in settings.remote_write]
    queues = [
        RemoteWriteQueue(url, PostClient(url, one), external_labels, queue_bytes=queue_bytes)
        for url, one in (*given, *configured)
    ]
    return RemoteWriteQueues(queues) if queues else None
