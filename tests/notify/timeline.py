"""Runs the scenarios: a real Alertmanager on the wall clock, and our notifier on a clock that the test moves.

A timeline is, per webhook path, the bodies in order with the flush each was sent in. Times of alerts are
seconds since the scenario's start, so that two runs can be compared.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuscope.base.clock import Clock
from gpuscope.base.limits import Limits
from gpuscope.base.time_text import parse_rfc3339, to_rfc3339
from gpuscope.judge.notify.alerting_config import AlertingConfig, load_alerting
from gpuscope.judge.notify.channel import Channel, ChannelKey, Told, encode
from gpuscope.judge.notify.channels.webhook import WebhookConfig, webhook_body
from gpuscope.judge.notify.notification import Notification
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.serve.api.alertmanager_json import read_alerts, read_silence
from tests.local_server import serving_in_thread
from tests.notify.memory_state import MemoryState
from tests.notify.scenarios import ACTIONS, DURATION_SECONDS, Action
from tests.waiting import PATIENCE_SECONDS

GROUP_INTERVAL = 2.0
START = 1_800_000_000.0
SEND_SECONDS = 0.005
Timeline = dict[str, list[dict[str, Any]]]


class ManualClock:
    def __init__(self, now: float = START) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def posted(action: Action, started: float) -> list[dict[str, Any]]:
    """The alerts as a client posts them."""
    found = []
    for one in action.alerts:
        fields = {key: value for key, value in one.items() if key not in ("start", "end")}
        fields["startsAt"] = to_rfc3339(started + one["start"], "milliseconds")
        if one["end"] is not None:
            fields["endsAt"] = to_rfc3339(started + one["end"], "milliseconds")
        found.append(fields)
    return found


def posted_silence(action: Action, started: float) -> dict[str, Any]:
    assert action.silence is not None
    ends = to_rfc3339(started + 3600, "milliseconds")
    return {**action.silence, "createdBy": "me", "startsAt": to_rfc3339(started), "endsAt": ends}


def to_timeline(requests: list[tuple[float, str, bytes]], started: float) -> Timeline:
    """`requests` are time, path and body."""
    found: Timeline = {}
    for at, path, body in requests:
        document = json.loads(body, object_pairs_hook=_Ordered)
        flush = int((at - started) / GROUP_INTERVAL)  # due at odd seconds: a second of delay does no harm
        document = [pair for pair in document.pairs if pair[0] not in ("externalURL", "routeLabels")]
        found.setdefault(path, []).append({"flush": flush, "body": _plain(document, started)})
    for entries in found.values():  # groups of one receiver are flushed at the same time, in any order
        entries.sort(key=lambda one: (one["flush"], one["body"]["groupKey"]))
    return found


class _Ordered:
    """A JSON object with the order of its keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def _plain(value: Any, started: float, key: str = "") -> Any:
    if isinstance(value, _Ordered):
        return {name: _plain(inner, started, name) for name, inner in value.pairs}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {name: _plain(inner, started, name) for name, inner in value}
    if isinstance(value, list):
        return [_plain(inner, started) for inner in value]
    if key in ("startsAt", "endsAt") and not value.startswith("0001"):
        # A tenth is enough: an end that Alertmanager sets itself depends on when the request arrived.
        return round(parse_rfc3339(value) - started, 1) + 0.0  # not -0.0
    return value


def canonical(timeline: Timeline) -> str:
    """As text, in which the order of keys counts."""
    return json.dumps(dict(sorted(timeline.items())), indent=1, ensure_ascii=False)


class Sink:
    """An HTTP server that keeps every request; `answers` are the statuses of the first ones.

    While `delay` is not set a request is held: its body is in `held`, and it gets no response."""

    def __init__(self) -> None:
        self.requests: list[tuple[float, str, bytes]] = []
        self.held: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        self.body = b""
        self.delay = threading.Event()
        self.delay.set()
        self.changed = threading.Condition()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if not sink.delay.is_set():
                    with sink.changed:
                        sink.held.append(body)
                        sink.changed.notify_all()
                sink.delay.wait()
                with sink.changed:
                    sink.requests.append((time.time(), self.path, body))
                    sink.headers.append(
                        {name.lower(): ", ".join(self.headers.get_all(name, ())) for name in self.headers}
                    )
                    status = sink.answers.pop(0) if sink.answers else 200
                    sink.changed.notify_all()
                self.send_response(status)
                self.send_header("content-length", str(len(sink.body)))
                self.end_headers()
                self.wfile.write(sink.body)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # with the default of 5, connections at the same moment wait a second

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, PATIENCE_SECONDS), self.requests

    def wait_for_held(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.held) >= count, PATIENCE_SECONDS), self.held


@contextmanager
def running_sink() -> Iterator[Sink]:
    sink = Sink()
    with sink.server, serving_in_thread(sink.server):
        try:
            yield sink
        finally:
            sink.delay.set()


def call(method: str, url: str, document: object = None) -> Any:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        body = reply.read()
    return json.loads(body) if body else None


def run_alertmanager(base: str, sink: Sink) -> Timeline:
    """Takes DURATION_SECONDS."""
    started = time.time()
    silences: dict[str, str] = {}
    for action in (*ACTIONS, Action(DURATION_SECONDS)):
        time.sleep(max(0.0, started + action.at - time.time()))
        if action.silence is not None:
            answer = call("POST", f"{base}/api/v2/silences", posted_silence(action, started))
            silences[action.silence["comment"]] = answer["silenceID"]
        if action.expire:
            call("DELETE", f"{base}/api/v2/silence/{silences[action.expire]}")
        if action.alerts:
            call("POST", f"{base}/api/v2/alerts", posted(action, started))
    with sink.changed:
        requests = list(sink.requests)
    for _, _, body in requests:  # our encoder writes the very bytes
        assert encode(json.loads(body)) == body
    return to_timeline(requests, started)


class Recorder:
    """A sender that keeps what a webhook would get."""

    def __init__(self, config: WebhookConfig, clock: Clock, requests: list[tuple[float, str, bytes]]) -> None:
        self._config = config
        self._clock = clock
        self._requests = requests

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        path = urlsplit(self._config.url.reveal()).path
        body = encode(webhook_body(notification, self._config.max_alerts))
        self._requests.append((self._clock.now(), path, body))
        return notification.fingerprints


def recording_channels(
    config: AlertingConfig, clock: Clock, requests: list[tuple[float, str, bytes]]
) -> dict[str, list[Channel]]:
    found: dict[str, list[Channel]] = {}
    for receiver in config.receivers.values():
        channels = found[receiver.name] = []
        for at, one in enumerate(receiver.channels):
            assert isinstance(one, WebhookConfig)
            key = ChannelKey(receiver.name, "webhook", at)
            channels.append(Channel(key, one.send_resolved, Recorder(one, clock, requests)))
    return found


def advance(notifier: Notifier, clock: ManualClock, until: float) -> None:
    """Flush everything that is due until then, each message accepted after SEND_SECONDS."""
    notifier.alert_statuses()  # takes what waits in the inbox
    for _ in range(10_000):
        due = notifier.next_flush_at()
        if due is None or due > until:
            break
        clock.time = max(clock.time, due)
        deliveries = notifier.flush_due()
        for delivery in deliveries:
            delivery.channel.sender.send(delivery.notification, 1.0)
        clock.time += SEND_SECONDS
        for delivery in deliveries:
            notifier.finished(delivery, None)
    clock.time = until


def run_notifier(config_path: Path) -> Timeline:
    clock = ManualClock()
    requests: list[tuple[float, str, bytes]] = []
    config = load_alerting(config_path)
    channels = recording_channels(config, clock, requests)
    limits = Limits()
    notifier = Notifier(config, channels, clock, MemoryState(), limits)
    silences: dict[str, str] = {}
    for action in (*ACTIONS, Action(DURATION_SECONDS)):
        advance(notifier, clock, START + action.at)
        if action.silence is not None:
            silence = read_silence(posted_silence(action, START), clock.now())
            silences[silence.comment] = notifier.silences.set(silence, clock.now())
        if action.expire:
            notifier.silences.expire(silences[action.expire], clock.now())
        if action.alerts:
            found = read_alerts(posted(action, START), clock.now(), limits, config.resolve_timeout)
            assert found.mistakes == []
            notifier.put(found.valid)
    return to_timeline(requests, START)
