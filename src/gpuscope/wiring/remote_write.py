"""Builds and runs remote write out: one queue and one thread for each receiver.

`Pushes` is the sink that a server's appenders and an agent's listener (`agent_push`) write to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuscope.metrics.sample import MetricFamily
from gpuscope.remote_write.http_post import PostClient
from gpuscope.remote_write.sender import RemoteWriteQueue
from gpuscope.scrape.http_config import HttpConfig, load_http_config, split_credentials
from gpuscope.settings import Settings, home_path


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
        http = load_http_config(home_path(settings.remote_write_http_config, "remote_write_http_config"))
    named = [split_credentials(url, http, f"--remote-write {url}") for url in settings.remote_write]
    queues = [
        RemoteWriteQueue(url, PostClient(url, one), external_labels, **queue_options)  # type: ignore[arg-type]
        for url, one in (*named, *also)
    ]
    return Pushes(queues) if queues else None
