"""A channel is one entry of a receiver: `email_configs[0]` of `oncall`. Here is what its sender must do.

A sender blocks, in the channel's own thread. It raises SendError; every other exception is a defect and counts
as an error that is not retried. A secret is shown as `<secret>` everywhere, and read where it is used: one in a
file may be rotated while the server runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from gpuscope.base.files import MAX_SECRET_BYTES, read_regular_text
from gpuscope.judge.notify.notification import Notification

Told = frozenset[str]
"""The fingerprints of the alerts that a message has in full: none that was cut off or left out of a list, and
none if a recipient did not get it. The idle policy acts only on warnings that were told."""
NOBODY_TOLD: Final = Told()
SECRET: Final = "<secret>"  # noqa: S105 - Alertmanager's own word
MAX_TARGET_CHARACTERS = 200


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


class ChannelConfig(Protocol):
    """An entry of a receiver, or a URL of `--notify`."""

    @property
    def kind(self) -> str: ...

    @property
    def send_resolved(self) -> bool: ...

    def target(self) -> str:
        """Whom it reaches, for people: mail addresses, a Slack channel, a host. Never a secret; empty if it is
        in a file, which may change while the server runs."""
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


@dataclass(frozen=True, slots=True)
class SecretText:
    """A password, token or URL that grants access."""

    _text: str = field(default="", repr=False)
    path: Path | None = None

    def __bool__(self) -> bool:
        return bool(self._text) or self.path is not None

    def __str__(self) -> str:
        return SECRET

    def reveal(self) -> str:
        if self.path is None:
            return self._text
        try:
            return read_regular_text(self.path, MAX_SECRET_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SendError(f"{self.path}: {reason}", may_retry=True) from None

    def host(self) -> str:
        """Of a URL: its path may be the secret."""
        return "" if self.path else url_host(self._text)


NO_SECRET: Final = SecretText()


def url_host(url: str) -> str:
    """Host and port; empty if a template decides them."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return ""
    return f"{parts.hostname or ''}{port}" if "{{" not in parts.netloc else ""
