"""A channel is one entry of a receiver: `email_configs[0]` of `oncall`. Here is what its sender must do.

A sender blocks, in the channel's own thread. It raises SendError; every other exception is a defect and counts
as an error that is not retried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from gpuscope.judge.notify.notification import Notification

Told = frozenset[str]
"""The fingerprints of the alerts that a message has in full: none that was cut off or left out of a list, and
none if a recipient did not get it. The idle policy acts only on warnings that were told."""
NOBODY_TOLD: Final = Told()


class SendError(Exception):
    """`reason` is one of Alertmanager's: clientError, serverError, contextDeadlineExceeded, other."""

    def __init__(self, message: str, *, may_retry: bool, reason: str = "other") -> None:
        super().__init__(message)
        self.may_retry = may_retry
        self.reason = reason


class Sender(Protocol):
    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        """Return when the channel has accepted the message."""
        ...


class ChannelKey(NamedTuple):
    receiver: str
    kind: str
    """`webhook`, `email`, `slack`, …"""
    position: int
    """Among the receiver's channels of this kind."""

    def __str__(self) -> str:
        return f"{self.receiver}/{self.kind}[{self.position}]"


@dataclass(frozen=True, slots=True)
class Channel:
    key: ChannelKey
    sends_resolved: bool
    sender: Sender
    sent_to: str = ""
    """Whom it reaches, for people; without secrets."""
