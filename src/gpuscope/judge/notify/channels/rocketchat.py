"""Rocket.Chat: a message of one attachment, posted as the user whose token is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    ComposedMessage,
    SecretText,
    SendError,
    cut,
    finish,
    join_url,
    url_host,
)
from gpuscope.judge.notify.channels import (
    ApiGlobals,
    ApiUrlConfig,
    ChannelKind,
    JsonSender,
    read_attachment_fields,
    read_entry,
)
from gpuscope.judge.notify.message_texts import MARKDOWN, default_template
from gpuscope.judge.notify.notification import Notification

API_URL = "https://open.rocket.chat/"
MAX_TITLE_CHARACTERS = 1024
DEFAULTS = {
    "channel": "",
    "color": '{{ if eq .Status "firing" }}red{{ else }}green{{ end }}',
    "emoji": default_template("rocketchat.default.emoji"),
    "icon_url": default_template("rocketchat.default.iconurl"),
    "text": default_template("rocketchat.default.text"),
    "title": default_template("rocketchat.default.title"),
    "title_link": default_template("rocketchat.default.titlelink"),
    "image_url": "",
    "thumb_url": "",
}
_ATTACHMENT = ("title", "title_link", "text", "image_url", "thumb_url", "color")
_PLAIN = ("channel", "icon_url", "title_link", "image_url", "thumb_url", "color", "emoji")
_ACTION_TEXTS = ("type", "text", "url", "imageurl", "webviewheightratio", "msg", "msgprocessingtype")
_ACTION_SWITCHES = ("iswebview", "msginchatwindow")
TEXTS = """
{{ define "rocketchat.default.title" }}{{ template "__subject" . }}{{ end }}
{{ define "rocketchat.default.alias" }}{{ template "__alertmanager" . }}{{ end }}
{{ define "rocketchat.default.titlelink" }}{{ template "__alertmanagerURL" . }}{{ end }}
{{ define "rocketchat.default.emoji" }}{{ end }}
{{ define "rocketchat.default.iconurl" }}{{ end }}
{{ define "rocketchat.default.text" }}{{ template "__text_markdown" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketchatConfig(ApiUrlConfig):
    kind: ClassVar[str] = "rocketchat"
    token: SecretText
    token_id: SecretText
    """The id of the token's user."""
    send_resolved: bool = False
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    fields: tuple[Mapping[str, Any], ...] = ()
    actions: tuple[Mapping[str, str], ...] = ()
    short_fields: bool = False

    def target(self) -> str:
        return self.texts["channel"] or url_host(self.api_url)


def _read(table: ConfigMapping, http: HttpConfig, own: ApiGlobals) -> RocketchatConfig:
    table.switch("link_names", False)  # Alertmanager reads it and does not send it
    return read_entry(
        RocketchatConfig,
        table,
        http,
        token=own.read_secret(table, "token"),
        token_id=own.read_secret(table, "token_id"),
        api_url=own.read_url(table),
        fields=read_attachment_fields(table, are_required=False),
        actions=_read_actions(table),
    )


def _read_actions(table: ConfigMapping) -> tuple[Mapping[str, str], ...]:
    actions = []
    for part in table.tables("actions"):
        entry = {key: part.text(key) for key in _ACTION_TEXTS}
        for key in _ACTION_SWITCHES:
            part.switch(key, False)
        finish(part)
        actions.append({key: entry[key] for key in ("text", "url", "msg")})  # Alertmanager sends no others
    return tuple(actions)


class RocketchatSender(JsonSender[RocketchatConfig]):
    retried_statuses = ()

    def compose(self, notification: Notification) -> ComposedMessage:
        config, messages = self._config, self._messages

        def expand(text: str) -> str:
            return messages.expand(text, notification, MARKDOWN)

        texts = {key: messages.expand(config.texts[key], notification) for key in _PLAIN}
        message = messages.fit(config.texts["text"], notification, style=MARKDOWN)
        texts["text"] = message.text
        texts["title"] = cut(
            messages.title(config.texts["title"], notification, MARKDOWN), MAX_TITLE_CHARACTERS
        )
        attachment: dict[str, object] = {key: texts[key] for key in _ATTACHMENT if texts[key]}
        if config.fields:
            attachment["fields"] = [
                {
                    "short": entry.get("short", config.short_fields),
                    **{key: expand(entry[key]) for key in ("title", "value") if entry[key]},
                }
                for entry in config.fields
            ]
        if config.actions:
            attachment["actions"] = [
                {
                    "type": "button",
                    **{key: expand(text) for key, text in action.items() if text},
                    "is_webview": False,
                    "msg_in_chat_window": False,
                }
                for action in config.actions
            ]
        named = {"channel": texts["channel"], "emoji": texts["emoji"], "avatar": texts["icon_url"]}
        document: dict[str, object] = {key: text for key, text in named.items() if text}
        return ComposedMessage({**document, "attachments": [attachment]}, message.told)

    def url(self, notification: Notification) -> str:
        return join_url(self._config.api_url, "api/v1/chat.postMessage")

    def headers(self) -> tuple[tuple[str, str], ...]:
        config = self._config
        return ("x-auth-token", config.token.reveal()), ("x-user-id", config.token_id.reveal())

    def check_answer(self, body: bytes) -> None:
        """Rocket.Chat may answer 200 to what it refuses."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise SendError("the answer is not JSON", may_retry=True, reason="clientError") from None
        if not isinstance(answer, dict) or answer.get("success") is not True:
            reason = answer.get("error") if isinstance(answer, dict) else answer
            raise SendError(f"Rocket.Chat: {str(reason)[:200]}", may_retry=False, reason="clientError")


KIND = ChannelKind(
    name="rocketchat",
    summary="a user or bot of Rocket.Chat",
    sender=RocketchatSender,
    read=_read,
    read_globals=ApiGlobals.reader("rocketchat", API_URL, "token", "token_id"),
    texts=TEXTS,
    secret_keys=("token", "token_id", "rocketchat_token", "rocketchat_token_id"),
    plain_keys=("token", "token_id"),
)
