"""`/api/notify`, `/api/notifications` and `/api/notify/test`: channels, sent messages, and a test message.

Input: query parameters `limit`, `before`, `receiver`, `fingerprint`, `outcome`. Output: the types of
`api_types`. Work under the notifier's lock, and a channel's test, runs in a thread: the event loop never waits
for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

import orjson

from gpuscope.base.clock import Clock
from gpuscope.judge.notify.channel import Channel, SendError
from gpuscope.judge.notify.notification import FIRING, RESOLVED, sample_notification
from gpuscope.judge.notify.notification_log import NotificationRecord, Outcome
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.serve.api.encode import failure
from gpuscope.serve.api.responses import JSON, error_answer
from gpuscope.serve.api_types.notifications_json import (
    ChannelJson,
    NotificationJson,
    NotificationsAnswer,
    NotifyAnswer,
    NotifyTestAnswer,
    TestedChannelJson,
)
from gpuscope.serve.http.messages import BodyTooLarge, Request, Response, Route

DEFAULT_LIMIT = 100
MAX_PARAMETERS = 20
MAX_TEST_BODY_BYTES = 16 << 10
TEST_SECONDS = 20.0
"""For each channel of a receiver."""
NOTIFY_PATH, HISTORY_PATH, TEST_PATH = "/api/notify", "/api/notifications", "/api/notify/test"


class NotificationRoutes:
    def __init__(self, notifier: Notifier, clock: Clock) -> None:
        self._notifier = notifier
        self._clock = clock
        self._testing = asyncio.Semaphore(1)  # a test may hang for TEST_SECONDS, and threads are few

    def routes(self) -> list[Route]:
        return [
            Route(NOTIFY_PATH, self._status),
            Route(HISTORY_PATH, self._history),
            Route(TEST_PATH, self._test, ("POST",)),
        ]

    async def _status(self, request: Request) -> Response:
        return _json(await asyncio.to_thread(notify_answer, self._notifier))

    async def _history(self, request: Request) -> Response:
        try:
            keep, limit = _read_filter(request)
        except ValueError as error:
            return error_answer("bad_data", str(error))
        records = await asyncio.to_thread(self._notifier.history)
        return _json(history_answer([record for record in records if keep(record)], limit))

    async def _test(self, request: Request) -> Response:
        receiver = await _read_receiver(request)
        if isinstance(receiver, Response):
            return receiver
        channels = self._notifier.channels_of(receiver)
        if not channels:
            return error_answer("not_found", f"no receiver {receiver[:100]!r} with a channel")
        if self._testing.locked():
            return Response(failure("unavailable", "another test message is being sent; try again"), 503, JSON)
        async with self._testing:
            tested = [await asyncio.to_thread(self._send_test, channel) for channel in channels]
        return _json(NotifyTestAnswer(channels=tested))

    def _send_test(self, channel: Channel) -> TestedChannelJson:
        url, now = self._notifier.external_url, self._clock.now()
        notification = sample_notification(channel.key.receiver, url, now, is_resolved=False)
        error = ""
        try:
            channel.sender.send(notification, TEST_SECONDS)
        except SendError as reason:
            error = str(reason)
        except Exception as reason:  # a defect of a sender must not be a 500 without words
            error = f"{type(reason).__name__}: {reason}"
        return TestedChannelJson(channel=str(channel.key), sent_to=channel.sent_to, error=error)


def notify_answer(notifier: Notifier) -> NotifyAnswer:
    sent_to = {
        channel.key: channel.sent_to
        for receiver in notifier.config.receivers
        for channel in notifier.channels_of(receiver)
    }
    channels = [
        ChannelJson(
            channel=str(key),
            receiver=key.receiver,
            kind=key.kind,
            sent_to=sent_to.get(key, ""),
            up=status.is_up,
            last_error=status.last_error,
            failing_since=status.failing_since or None,
            last_sent_at=status.last_sent_at or None,
            sent=status.sent,
            failed=status.failed,
        )
        for key, status in sorted(notifier.channel_statuses().items())
    ]
    return NotifyAnswer(
        channels=channels, reload_error=notifier.reload_error, reloaded_at=notifier.counters.reloaded_at
    )


def history_answer(records: list[NotificationRecord], limit: int) -> NotificationsAnswer:
    shown = records[:limit]
    return NotificationsAnswer(
        notifications=[_record_json(record) for record in shown],
        next=shown[-1].id if len(records) > len(shown) else None,
    )


def _record_json(record: NotificationRecord) -> NotificationJson:
    return NotificationJson(
        id=record.id,
        channel=str(record.channel),
        receiver=record.channel.receiver,
        kind=record.channel.kind,
        sent_to=record.sent_to,
        started_at=record.started_at,
        finished_at=record.finished_at,
        outcome=record.outcome.value,
        attempts=record.attempts,
        error=record.error,
        status=FIRING if record.firing_count else RESOLVED,
        reason=record.reason,
        group_labels=dict(record.group_labels),
        firing=record.firing_count,
        resolved=record.resolved_count,
        alerts=[
            {"fingerprint": alert.fingerprint, "status": alert.status, "labels": dict(alert.labels)}
            for alert in record.alerts
        ],
        repeats=record.repeats,
    )


def _read_filter(request: Request) -> tuple[Callable[[NotificationRecord], bool], int]:
    """Raises ValueError with a sentence."""
    try:
        text = request.query.decode("ascii")
        values = dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS))
    except ValueError:
        raise ValueError("the parameters cannot be decoded, or are too many") from None
    limit = _positive(values, "limit", DEFAULT_LIMIT)
    before = _positive(values, "before", 0)
    outcome = values.get("outcome", "")
    if outcome and outcome not in list(Outcome):
        raise ValueError(f"outcome must be one of {', '.join(Outcome)}")
    receiver, fingerprint = values.get("receiver"), values.get("fingerprint")

    def keep(record: NotificationRecord) -> bool:
        return (
            (not before or record.id < before)
            and (not outcome or record.outcome == outcome)
            and (receiver is None or record.channel.receiver == receiver)
            and (fingerprint is None or any(alert.fingerprint == fingerprint for alert in record.alerts))
        )

    return keep, limit


def _positive(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and int(text) > 0):
        raise ValueError(f"{name} must be a positive integer")
    return int(text)


async def _read_receiver(request: Request) -> str | Response:
    try:
        document = orjson.loads(await request.body.read(MAX_TEST_BODY_BYTES))
    except (BodyTooLarge, orjson.JSONDecodeError):
        document = None
    receiver = document.get("receiver") if isinstance(document, dict) else None
    if not isinstance(receiver, str):
        return error_answer("bad_data", 'send JSON: {"receiver": "NAME"}')
    return receiver


def _json(document: object) -> Response:
    return Response(orjson.dumps(document), 200, JSON)
