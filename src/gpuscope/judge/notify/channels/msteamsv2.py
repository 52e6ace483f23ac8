"""Microsoft Teams: an adaptive card for a workflow's webhook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import SplitResult

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import ComposedMessage, SecretText, cut, encode, read_required_url
from gpuscope.judge.notify.channels import ChannelKind, JsonSender, UrlForm, WebhookUrlConfig, read_entry
from gpuscope.judge.notify.message_texts import MARKDOWN, default_template
from gpuscope.judge.notify.notification import FIRING, Notification

MAX_TITLE_CHARACTERS = 1000
MAX_TEXT_CHARACTERS = 20_000
MAX_MESSAGE_BYTES = 27_000
"""Teams refuses messages above 28 KB, and 20,000 characters may be more: a Chinese one has 3 bytes."""
TITLE = default_template("msteamsv2.default.title")
TEXT = default_template("msteamsv2.default.text")
TEXTS = """
{{ define "msteamsv2.default.title" }}{{ template "__subject" . }}{{ end }}
{{ define "msteamsv2.default.text" }}{{ template "__text_markdown" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MsTeamsV2Config(WebhookUrlConfig):
    kind: ClassVar[str] = "msteamsv2"
    title: str = TITLE
    text: str = TEXT


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> MsTeamsV2Config:
    return read_entry(MsTeamsV2Config, table, http, url=read_required_url(table, "webhook_url"))


def _parse_url(url: str, parts: SplitResult) -> MsTeamsV2Config | None:
    return MsTeamsV2Config(url=SecretText(url.partition("+")[2])) if parts.hostname else None


class MsTeamsV2Sender(JsonSender[MsTeamsV2Config]):
    def compose(self, notification: Notification) -> ComposedMessage:
        title = self._messages.title(self._config.title, notification, MARKDOWN)
        is_firing = notification.status == FIRING

        def shorten(text: str) -> str:
            text = cut(text, MAX_TEXT_CHARACTERS)
            while text and (size := len(encode(_card(title, text, is_firing=is_firing)))) > MAX_MESSAGE_BYTES:
                text = cut(text, max(1, len(text) * MAX_MESSAGE_BYTES // size - 1))
            return text

        fitted = self._messages.fit(self._config.text, notification, shorten, MARKDOWN)
        return ComposedMessage(_card(title, fitted.text, is_firing=is_firing), fitted.told)


def _card(title: str, text: str, *, is_firing: bool) -> dict[str, object]:
    heading = {
        "type": "TextBlock",
        "text": cut(title, MAX_TITLE_CHARACTERS),
        "weight": "Bolder",
        "size": "Medium",
        "wrap": True,
        "style": "heading",
        "color": "Attention" if is_firing else "Good",
    }
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [heading, {"type": "TextBlock", "text": text, "wrap": True}],
        "msteams": {"width": "full"},
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attachment]}


KIND = ChannelKind(
    name="msteamsv2",
    summary="a workflow of Microsoft Teams",
    sender=MsTeamsV2Sender,
    read=_read,
    url=UrlForm(("msteams+https", "msteams+http"), "msteams+https://HOST/PATH", _parse_url, has_port=True),
    texts=TEXTS,
)
