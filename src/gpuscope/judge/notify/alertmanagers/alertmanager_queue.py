"""The queue of one Alertmanager: bounded, sent in batches, oldest alerts dropped first, never retried.

A failed batch is lost on purpose, as in Prometheus: the rule engine sends an alert again each minute while it
fires, and for 15 minutes after it is resolved. `run` is for a thread of its own, so that an Alertmanager that
hangs delays no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.http_config import HttpConfig
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.remote_write.http_post import PostClient
from gpuscope.judge.rules.alert import Alert
from gpuscope.judge.rules.timings import Timings
from gpuscope.model.series import Labels

log = logging.getLogger("gpuscope")

MAX_BATCH = 256
JSON_HEADERS = (("content-type", "application/json"),)
_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


class AlertmanagerQueue:
    def __init__(self, url: str, http: HttpConfig, timeout_seconds: float, capacity: int) -> None:
        self.url = url
        self._client = PostClient(url, http, timeout_seconds)
        self._capacity = capacity
        self._waiting: deque[Alert] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._episode = EpisodeLog(log, f"Alertmanager {url}: alerts were not sent")
        self.sent = self.dropped = self.errors = 0
        self.latency = Timings()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, alerts: Sequence[Alert]) -> None:
        """Add alerts; does not wait."""
        with self._changed:
            if self._stopping:
                return
            self._waiting.extend(alerts)
            excess = len(self._waiting) - self._capacity
            for _ in range(excess):
                self._waiting.popleft()
            if excess > 0:
                self.dropped += excess
                LIMITS_REACHED.count("alertmanager_queue_capacity")
            self._changed.notify()

    def stop(self) -> None:
        """`run` sends what is left and returns."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self.send(batch)
        self._client.close()

    def _next_batch(self) -> list[Alert] | None:
        with self._changed:
            while not self._waiting and not self._stopping:
                self._changed.wait()
            if not self._waiting:
                return None
            return [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]

    def send(self, batch: Sequence[Alert]) -> None:
        began = time.monotonic()
        try:
            response = self._client.post(encode_alerts(batch), JSON_HEADERS)
            if response.status // 100 != 2:
                raise OSError(f"HTTP {response.status} {response.text}".strip())
        except OSError as error:
            self.errors += len(batch)
            self.dropped += len(batch)
            self._episode.failed(str(error) or type(error).__name__)
            return
        self._episode.succeeded()
        self.latency.observe(time.monotonic() - began)
        self.sent += len(batch)


def encode_alerts(alerts: Sequence[Alert]) -> bytes:
    """The body of `POST /api/v2/alerts`, byte for byte as Prometheus writes it."""
    text = orjson.dumps([_alert_document(alert) for alert in alerts]).decode()
    return text.translate(_HTML).encode()


def _alert_document(alert: Alert) -> dict[str, Any]:
    ends_at = alert.valid_until if alert.ends_at is None else alert.ends_at
    annotations = _mapping(alert.annotations)
    return {
        **({"annotations": annotations} if annotations else {}),
        "endsAt": milliseconds_text(ends_at),
        "startsAt": milliseconds_text(alert.starts_at),
        "generatorURL": alert.generator_url,
        "labels": _mapping(alert.labels),
    }


def _mapping(labels: Labels) -> dict[str, str]:
    """Text that is not UTF-8 cannot be sent in JSON."""
    return {_utf8(name): _utf8(value) for name, value in labels}


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def milliseconds_text(seconds: float) -> str:
    """RFC 3339 with milliseconds, cut off as Go does it; a float has microseconds at best."""
    milliseconds = round(seconds * 1e6) // 1000
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"
