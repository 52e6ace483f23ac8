"""Telegram: a bot's message to a chat. Labels are escaped as HTML if that is the parse mode."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import SplitResult

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import ComposedMessage, SecretText, SendError, cut, read_secret
from gpuscope.judge.notify.channels import (
    ApiGlobals,
    ApiUrlConfig,
    ChannelKind,
    JsonSender,
    UrlForm,
    read_entry,
    url_segments,
)
from gpuscope.judge.notify.message_texts import (
    HTML,
    MARKDOWN,
    PLAIN,
    PLAIN_TEXT,
    SUBJECT,
    default_template,
    fit_alerts,
)
from gpuscope.judge.notify.notification import Notification

API_URL = "https://api.telegram.org"
MAX_MESSAGE_CHARACTERS = 4096
_MARKDOWN_V2 = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
MESSAGE = default_template("telegram.default.message")
TEXTS = """
{{ define "telegram.alert_list" -}}
{{ range $at, $alert := .Listed }}{{ if $at }}

{{ end }}<b>{{ .Name }}</b>{{ range .Rows }}
- {{ .Name }}: {{ .Value }}{{ end }}{{ range .Links }}
- <a href="{{ .Value }}">{{ .Name }}</a>{{ end }}{{ end }}{{ with .More }}

and {{ . }} more{{ end }}
{{- end }}
{{ define "telegram.default.message" -}}
{{ with .Alerts.Firing }}<b>Firing</b>
{{ template "telegram.alert_list" . }}{{ end }}{{ with .Alerts.Resolved }}{{ if $.Alerts.Firing }}

{{ end }}<b>Resolved</b>
{{ template "telegram.alert_list" . }}{{ end }}{{ if match "^https?://" .PageURL }}

<a href="{{ .PageURL }}">All alerts</a>{{ end }}
{{- end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramConfig(ApiUrlConfig):
    kind: ClassVar[str] = "telegram"
    api_url: str = API_URL
    bot_token: SecretText
    chat_id: SecretText
    """A number; no secret, but it may be in a file."""
    message_thread_id: int = 0
    message: str = MESSAGE
    disable_notifications: bool = False
    parse_mode: str = "HTML"

    def target(self) -> str:
        return "" if self.chat_id.path else f"chat {self.chat_id.reveal()}"


def _read(table: ConfigMapping, http: HttpConfig, own: ApiGlobals) -> TelegramConfig:
    token = own.read_secret(table, "bot_token")
    chat_id = read_secret(table, "chat_id")
    if not chat_id:
        table.fail("chat_id", "is missing")
    if chat_id.path is None and re.fullmatch(r"-?[1-9]\d{0,18}", chat_id.reveal(), re.ASCII) is None:
        table.fail("chat_id", f"{chat_id.reveal()!r} is not the number of a chat")
    return read_entry(
        TelegramConfig,
        table,
        http,
        bot_token=token,
        chat_id=chat_id,
        api_url=own.read_url(table),
        parse_mode=table.one_of("parse_mode", "HTML", ("", "Markdown", "MarkdownV2", "HTML")),
    )


def _parse_url(url: str, parts: SplitResult) -> TelegramConfig | None:
    words = url_segments(parts)
    if len(words) != 2 or re.fullmatch(r"-?\d+", words[1], re.ASCII) is None:
        return None
    return TelegramConfig(bot_token=SecretText(words[0]), chat_id=SecretText(words[1]))


def _escape_markdown_v2(text: str) -> str:
    return _MARKDOWN_V2.sub(r"\\\1", text)


_ESCAPES: Mapping[str, Callable[[str], str]] = {
    "HTML": html.escape,
    "MarkdownV2": _escape_markdown_v2,
    "Markdown": _escape_markdown_v2,
}
_STYLES = {"": PLAIN, "HTML": HTML, "Markdown": MARKDOWN, "MarkdownV2": MARKDOWN}


class TelegramSender(JsonSender[TelegramConfig]):
    def compose(self, notification: Notification) -> ComposedMessage:
        config, messages = self._config, self._messages
        escape = _ESCAPES.get(config.parse_mode, str)

        def shorten(text: str) -> str:
            if len(text) > MAX_MESSAGE_CHARACTERS and config.parse_mode:
                # Cutting HTML would leave a tag open, and Telegram would refuse the message.
                text = escape(messages.title(SUBJECT, notification))
            return cut(text, MAX_MESSAGE_CHARACTERS)

        def render_plain(max_listed: int) -> str:
            return escape(messages.expand(PLAIN_TEXT, notification, max_listed=max_listed))

        if config.parse_mode != "HTML" and messages.is_default(config.message):
            message = fit_alerts(notification, render_plain, shorten)  # the default message has HTML tags
        else:
            message = messages.fit(config.message, notification, shorten, _STYLES[config.parse_mode])
        document: dict[str, object] = {
            "chat_id": config.chat_id.reveal(),
            "text": message.text,
            "disable_web_page_preview": True,
        }
        if config.parse_mode:
            document["parse_mode"] = config.parse_mode
        if config.disable_notifications:
            document["disable_notification"] = True
        if config.message_thread_id:
            document["message_thread_id"] = config.message_thread_id
        return ComposedMessage(document, message.told)

    def url(self, notification: Notification) -> str:
        token = self._config.bot_token.reveal()
        if re.fullmatch(r"[\w:.-]+", token, re.ASCII) is None:
            raise SendError("the bot token has characters that no token has", may_retry=False)
        return f"{self._config.api_url.rstrip('/')}/bot{token}/sendMessage"


KIND = ChannelKind(
    name="telegram",
    summary="a bot of Telegram",
    sender=TelegramSender,
    read=_read,
    read_globals=ApiGlobals.reader("telegram", API_URL, "bot_token"),
    url=UrlForm(("telegram", "tgram"), "telegram://BOT_TOKEN/CHAT_ID", _parse_url),
    texts=TEXTS,
    secret_keys=("bot_token", "telegram_bot_token"),
    plain_keys=("bot_token",),
)
