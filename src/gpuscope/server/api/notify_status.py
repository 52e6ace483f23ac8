"""`GET /api/notify`: the state of each channel, and whether the alerting file could be reloaded.

`up` is null until a channel was used. Times are RFC 3339, empty where there is none.
"""

from __future__ import annotations

from typing import TypedDict

import orjson

from gpuscope.notify.notifier import Notifier
from gpuscope.rfc3339 import to_rfc3339
from gpuscope.server.http.messages import Request, Response
from gpuscope.server.http.routing import Route


class ChannelJson(TypedDict):
    channel: str
    receiver: str
    kind: str
    up: bool | None
    last_error: str
    failing_since: str
    last_sent_at: str
    sent: int
    failed: int


class NotifyJson(TypedDict):
    channels: list[ChannelJson]
    reload_error: str
    reloaded_at: str


def notify_json(notifier: Notifier) -> NotifyJson:
    channels = [
        ChannelJson(
            channel=str(key),
            receiver=key.receiver,
            kind=key.kind,
            up=status.is_up,
            last_error=status.last_error,
            failing_since=_time(status.failing_since),
            last_sent_at=_time(status.last_sent_at),
            sent=status.sent,
            failed=status.failed,
        )
        for key, status in sorted(notifier.channel_statuses().items())
    ]
    reloaded_at = _time(notifier.counters.reloaded_at)
    return NotifyJson(channels=channels, reload_error=notifier.reload_error, reloaded_at=reloaded_at)


def _time(seconds: float) -> str:
    return to_rfc3339(seconds, "milliseconds") if seconds else ""


def notify_status_route(notifier: Notifier) -> Route:
    async def answer(request: Request) -> Response:
        return Response(orjson.dumps(notify_json(notifier)), 200, "application/json")

    return Route("/api/notify", answer)
