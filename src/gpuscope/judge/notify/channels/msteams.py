"""Microsoft Teams' connectors, which workflows (`msteamsv2`) replace: a message card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import ComposedMessage, cut, encode, read_required_url
from gpuscope.judge.notify.channels import ChannelKind, JsonSender, WebhookUrlConfig, read_entry
from gpuscope.judge.notify.message_texts import MARKDOWN, default_template
from gpuscope.judge.notify.notification import FIRING, Notification

MAX_MESSAGE_BYTES = 27_000
"""Teams refuses messages above 28 KB."""
RED, GREEN = "8C1A1A", "2DC72D"
TITLE = default_template("msteams.default.title")
SUMMARY = default_template("msteams.default.summary")
TEXT = default_template("msteams.default.text")
TEXTS = """
{{ define "msteams.default.title" }}{{ template "__subject" . }}{{ end }}
{{ define "msteams.default.summary" }}{{ template "__subject" . }}{{ end }}
{{ define "msteams.default.text" }}{{ template "__text_markdown" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MsTeamsConfig(WebhookUrlConfig):
    kind: ClassVar[str] = "msteams"
    title: str = TITLE
    summary: str = SUMMARY
    text: str = TEXT


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> MsTeamsConfig:
    return read_entry(MsTeamsConfig, table, http, url=read_required_url(table, "webhook_url"))


class MsTeamsSender(JsonSender[MsTeamsConfig]):
    retried_statuses = ()

    def compose(self, notification: Notification) -> ComposedMessage:
        card: dict[str, object] = {
            "@context": "http://schema.org/extensions",
            "type": "MessageCard",
            "title": self._messages.title(self._config.title, notification, MARKDOWN),
            "summary": self._messages.title(self._config.summary, notification, MARKDOWN),
            "text": "",
            "themeColor": RED if notification.status == FIRING else GREEN,
        }

        def shorten(text: str) -> str:
            while text and (size := len(encode({**card, "text": text}))) > MAX_MESSAGE_BYTES:
                text = cut(text, max(1, len(text) * MAX_MESSAGE_BYTES // size - 1))
                if len(text) == 1:
                    break
            return text

        fitted = self._messages.fit(self._config.text, notification, shorten, MARKDOWN)
        return ComposedMessage({**card, "text": fitted.text}, fitted.told)


KIND = ChannelKind(
    name="msteams",
    summary="a connector of Microsoft Teams, which workflows replace",
    sender=MsTeamsSender,
    read=_read,
    texts=TEXTS,
    secret_keys=("webhook_url",),
)
