"""The answers of `GET /api/notify`, `GET /api/notifications` and `POST /api/notify/test`."""

from __future__ import annotations

from typing import Literal, TypedDict

NotificationOutcome = Literal["sending", "sent", "failed"]
NotifiedStatus = Literal["firing", "resolved"]


class ChannelJson(TypedDict):
    """One entry of a receiver, for instance its first `email_configs`."""

    channel: str
    """`RECEIVER/KIND[POSITION]`."""
    receiver: str
    kind: str
    """`webhook`, `email`, `slack`, …"""
    sent_to: str
    """Whom it reaches: mail addresses, a Slack channel, a host name; never a secret, and empty if not known."""
    up: bool | None
    """False while its last message was not accepted; null before the first one."""
    last_error: str
    failing_since: float | None
    last_sent_at: float | None
    """Since the server started."""
    sent: int
    """Since the server started."""
    failed: int
    """Attempts that failed since the server started."""


class NotifyAnswer(TypedDict):
    """`GET /api/notify`: the channels, and the last reload of the alerting file."""

    channels: list[ChannelJson]
    reload_error: str
    """Why the current file is not in use: file, line and reason; empty if it is."""
    reloaded_at: float


class NotifiedAlertJson(TypedDict):
    """An alert in a message."""

    fingerprint: str
    """As in Alertmanager's `/api/v2/alerts`."""
    status: NotifiedStatus
    labels: dict[str, str]


class NotificationJson(TypedDict):
    """One message to one channel about one group of alerts."""

    id: int
    """Grows with time."""
    channel: str
    receiver: str
    kind: str
    sent_to: str
    """As in ChannelJson."""
    started_at: float
    finished_at: float | None
    """Null while it is being sent or waits for the next attempt."""
    outcome: NotificationOutcome
    """`failed`: given up; the group's next flush sends what is current then."""
    attempts: int
    error: str
    """Of the last attempt; empty if that was accepted."""
    status: NotifiedStatus
    """`resolved` if no alert in it fires."""
    reason: str
    """Why it was sent, in Alertmanager's words: `first notification`, `new alerts added`, …"""
    group_labels: dict[str, str]
    firing: int
    """Number of alerts."""
    resolved: int
    alerts: list[NotifiedAlertJson]
    """The first ones, at most 20."""
    repeats: int
    """Above 0 for repetitions of a message, which are one record: how many there were."""


class NotificationsAnswer(TypedDict):
    """`GET /api/notifications`: newest first. Survives a restart; the oldest are forgotten."""

    notifications: list[NotificationJson]
    next: int | None
    """Value of `before` for the next page; null on the last one."""


class TestedChannelJson(TypedDict):
    """What became of a test message."""

    channel: str
    sent_to: str
    error: str
    """Empty if the channel accepted it."""


class NotifyTestRequest(TypedDict):
    """`POST /api/notify/test`: the body of the request."""

    receiver: str


class NotifyTestAnswer(TypedDict):
    """`POST /api/notify/test`: one entry for each channel of the receiver."""

    channels: list[TestedChannelJson]
