"""ntfy: a JSON message to the server, so that no label ends up in an HTTP header.

Alertmanager has no such receiver: it is only a URL of `--notify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import SplitResult, unquote

from gpuscope.base.http_config import basic_header
from gpuscope.judge.notify.channel import NO_SECRET, ComposedMessage, SecretText, cut
from gpuscope.judge.notify.channels import ChannelKind, JsonSender, UrlForm, WebhookUrlConfig, bearer_header
from gpuscope.judge.notify.message_texts import PLAIN_TEXT, SUBJECT
from gpuscope.judge.notify.notification import FIRING, Notification, page_link, web_link

MAX_TITLE_CHARACTERS = 200
MAX_MESSAGE_BYTES = 3900
"""ntfy makes an attachment of a message above 4,096 bytes."""
_PRIORITIES = {"critical": 5, "warning": 4, "info": 2}
_DEFAULT_PRIORITY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NtfyConfig(WebhookUrlConfig):
    """Its URL is the server's, without the topic."""

    kind: ClassVar[str] = "ntfy"
    topic: SecretText
    """A secret: anyone who knows the topic can read its messages."""
    token: SecretText = NO_SECRET
    username: str = ""
    password: SecretText = NO_SECRET


def _parse_url(url: str, parts: SplitResult) -> NtfyConfig | None:
    topic = parts.path.strip("/")
    if not parts.hostname or not topic or "/" in topic:
        return None
    scheme = "http" if parts.scheme.endswith("+http") else "https"
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return NtfyConfig(
        url=SecretText(f"{scheme}://{parts.netloc.rpartition('@')[2]}/"),
        topic=SecretText(topic),
        token=SecretText(user if user and parts.password is None else ""),
        username=user if parts.password is not None else "",
        password=SecretText(password),
    )


class NtfySender(JsonSender[NtfyConfig]):
    def compose(self, notification: Notification) -> ComposedMessage:
        is_firing = notification.status == FIRING
        severities = {alert.labels.get("severity", "") for alert in notification.firing}
        priorities = (_PRIORITIES.get(severity, _DEFAULT_PRIORITY) for severity in severities)
        message = self._messages.fit(PLAIN_TEXT, notification, _shorten)
        document: dict[str, object] = {
            "topic": self._config.topic.reveal(),
            "title": cut(self._messages.title(SUBJECT, notification), MAX_TITLE_CHARACTERS),
            "message": message.text,
            "priority": max(priorities, default=_DEFAULT_PRIORITY),
            "tags": ["rotating_light" if is_firing else "white_check_mark"],
        }
        if link := web_link(page_link(notification)):
            document["click"] = link
        return ComposedMessage(document, message.told)

    def headers(self) -> tuple[tuple[str, str], ...]:
        config = self._config
        if config.username and not config.token:
            return (basic_header(config.username, config.password.reveal()),)
        return bearer_header(config.token)


def _shorten(text: str) -> str:
    message = text.encode("utf-8", "replace")
    if len(message) > MAX_MESSAGE_BYTES:
        message = message[:MAX_MESSAGE_BYTES] + "…".encode()
    return message.decode("utf-8", "ignore")


KIND = ChannelKind(
    name="ntfy",
    summary="ntfy; `ntfy+http://` without TLS",
    sender=NtfySender,
    url=UrlForm(
        ("ntfy", "ntfys", "ntfy+http"),
        "ntfy://[USER:PASSWORD@|TOKEN@]HOST/TOPIC",
        _parse_url,
        has_port=True,
    ),
)
