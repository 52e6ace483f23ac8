"""Slack: one attachment per message, through an incoming webhook or an app's token.

Labels are escaped, so that a name such as `<!channel>` notifies nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import SplitResult

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    NO_SECRET,
    ComposedMessage,
    SecretText,
    SendError,
    cut,
    finish,
    read_plain_url,
    read_secret,
    read_secret_url,
)
from gpuscope.judge.notify.channels import (
    ChannelKind,
    JsonSender,
    UrlForm,
    WebhookUrlConfig,
    bearer_header,
    read_attachment_fields,
    read_entry,
    url_segments,
)
from gpuscope.judge.notify.message_texts import SLACK, default_template
from gpuscope.judge.notify.notification import Notification

APP_URL = "https://slack.com/api/chat.postMessage"
MAX_TITLE_CHARACTERS = 1024
MAX_TEXT_CHARACTERS = 30_000
DEFAULTS = {
    "channel": "",
    "username": default_template("slack.default.username"),
    "color": default_template("slack.default.color"),
    "title": default_template("slack.default.title"),
    "title_link": default_template("slack.default.titlelink"),
    "pretext": default_template("slack.default.pretext"),
    "text": default_template("slack.default.text"),
    "message_text": "",
    "footer": default_template("slack.default.footer"),
    "fallback": default_template("slack.default.fallback"),
    "callback_id": default_template("slack.default.callbackid"),
    "icon_emoji": default_template("slack.default.iconemoji"),
    "icon_url": default_template("slack.default.iconurl"),
    "image_url": "",
    "thumb_url": "",
}
_ATTACHMENT = (
    "title_link", "pretext", "text", "fallback", "callback_id", "image_url", "thumb_url", "footer", "color",
)  # fmt: skip
_MESSAGE = ("channel", "username", "icon_emoji", "icon_url")
_TITLES = ("title", "fallback")
TEXTS = """
{{ define "slack.default.username" }}{{ template "__alertmanager" . }}{{ end }}
{{ define "slack.default.color" }}{{ if eq .Status "firing" }}danger{{ else }}good{{ end }}{{ end }}
{{ define "slack.default.title" }}{{ template "__subject" . }}{{ end }}
{{ define "slack.default.titlelink" }}{{ template "__alertmanagerURL" . }}{{ end }}
{{ define "slack.default.fallback" -}}
{{ template "__subject" . }} | {{ template "__alertmanagerURL" . }}
{{- end }}
{{ define "slack.default.callbackid" }}{{ end }}
{{ define "slack.default.pretext" }}{{ end }}
{{ define "slack.default.iconemoji" }}{{ end }}
{{ define "slack.default.iconurl" }}{{ end }}
{{ define "slack.default.footer" }}{{ end }}
{{ define "slack.alert_list" -}}
{{ range $at, $alert := .Listed }}{{ if $at }}

{{ end }}*{{ .Name }}*{{ range .Rows }}
- {{ .Name }}: {{ .Value }}{{ end }}{{ range .Links }}
- <{{ .Value }}|{{ .Name }}>{{ end }}{{ end }}{{ with .More }}

and {{ . }} more{{ end }}
{{- end }}
{{ define "slack.default.text" -}}
{{ with .Alerts.Firing }}*Firing*
{{ template "slack.alert_list" . }}{{ end }}{{ with .Alerts.Resolved }}{{ if $.Alerts.Firing }}

{{ end }}*Resolved*
{{ template "slack.alert_list" . }}{{ end }}{{ if match "^https?://" .PageURL }}

<{{ .PageURL }}|All alerts>{{ end }}
{{- end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackConfig(WebhookUrlConfig):
    kind: ClassVar[str] = "slack"
    token: SecretText = NO_SECRET
    """An app's token, sent as a bearer token; empty for an incoming webhook."""
    send_resolved: bool = False
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    """The templates by key: title, text, color, …"""
    fields: tuple[Mapping[str, Any], ...] = ()
    actions: tuple[Mapping[str, Any], ...] = ()
    short_fields: bool = False
    link_names: bool = False
    mrkdwn_in: tuple[str, ...] = ("fallback", "pretext", "text")

    def target(self) -> str:
        return self.texts["channel"] or self.url.host()


@dataclass(frozen=True, slots=True)
class SlackGlobals:
    api_url: SecretText
    app_token: SecretText
    app_url: str


def _read_globals(table: ConfigMapping) -> SlackGlobals:
    url, token = read_secret_url(table, "slack_api_url"), read_secret(table, "slack_app_token")
    app_url = read_plain_url(table, "slack_app_url", APP_URL)
    # Files from before there were app tokens have the app's URL as `slack_api_url`.
    is_app_url = url.path is None and url.reveal() == app_url
    if url and token and not is_app_url:
        table.fail("slack_app_token", "give it or slack_api_url, not both")
    return SlackGlobals(url, token, app_url)


def _read(table: ConfigMapping, http: HttpConfig, own: SlackGlobals) -> SlackConfig:
    url, token = _read_target(table, own)
    if table.switch("update_message", False):
        table.not_supported("update_message", "is not supported; each notification is a message of its own")
    return read_entry(
        SlackConfig,
        table,
        http,
        url=url,
        token=token,
        fields=read_attachment_fields(table),
        actions=_read_actions(table),
        mrkdwn_in=table.strings("mrkdwn_in") or ("fallback", "pretext", "text"),
        timeout=table.duration("timeout", 0.0),
    )


def _read_target(table: ConfigMapping, own: SlackGlobals) -> tuple[SecretText, SecretText]:
    """URL and app token; the token is empty for an incoming webhook."""
    url, token = read_secret_url(table, "api_url"), read_secret(table, "app_token")
    app_url = read_plain_url(table, "app_url", own.app_url)
    has_authorization = table.has("http_config") and table.table("http_config").has("authorization")
    if url and token:
        table.fail("app_token", "give it or api_url, not both")
    if not url and not token and not has_authorization:
        token = own.app_token
    if token and has_authorization:
        table.fail("app_token", "it is sent as authorization; remove authorization from http_config")
    url = url or own.api_url
    if not url and not token:
        table.fail("api_url", "is missing, and so are slack_api_url and slack_app_token in global")
    return (SecretText(app_url) if token else url), token


def _read_actions(table: ConfigMapping) -> tuple[Mapping[str, Any], ...]:
    actions = []
    for part in table.tables("actions"):
        entry: dict[str, Any] = {
            key: part.text(key) for key in ("type", "text", "url", "style", "name", "value") if part.has(key)
        }
        for key in ("type", "text"):
            if not entry.get(key):
                part.fail(key, "is missing")
        if not entry.get("url") and not entry.get("name"):
            part.fail("url", "give url or name")
        if part.has("confirm"):
            confirm = part.table("confirm")
            entry["confirm"] = {key: confirm.text(key) for key in ("text", "title", "ok_text", "dismiss_text")}
            if not entry["confirm"]["text"]:
                confirm.fail("text", "is missing")
            finish(confirm)
        finish(part)
        actions.append(entry)
    return tuple(actions)


def _parse_url(url: str, parts: SplitResult) -> SlackConfig | None:
    words = url_segments(parts)
    if words and words[0] == "hooks.slack.com":
        words = words[2:]  # without `services`
    if len(words) != 3:
        return None
    return SlackConfig(
        url=SecretText("https://hooks.slack.com/services/" + "/".join(words)), send_resolved=True
    )


class SlackSender(JsonSender[SlackConfig]):
    def compose(self, notification: Notification) -> ComposedMessage:
        config, messages = self._config, self._messages

        def expand(text: str) -> str:
            return messages.expand(text, notification, SLACK)

        fitted = {key: messages.fit(text, notification, _shorten, SLACK) for key, text in config.texts.items()}
        texts = {key: text for key, (text, _) in fitted.items()}
        texts |= {key: _shorten(messages.title(config.texts[key], notification, SLACK)) for key in _TITLES}
        attachment: dict[str, object] = {"title": cut(texts["title"], MAX_TITLE_CHARACTERS)}
        attachment |= {key: texts[key] for key in _ATTACHMENT if texts[key]}
        attachment["mrkdwn_in"] = list(config.mrkdwn_in)
        if config.fields:
            attachment["fields"] = [
                {
                    "title": expand(field["title"]),
                    "value": expand(field["value"]),
                    "short": field.get("short", config.short_fields),
                }
                for field in config.fields
            ]
        if config.actions:
            attachment["actions"] = [_expand_action(action, expand) for action in config.actions]
        message: dict[str, object] = {key: texts[key] for key in _MESSAGE if texts[key]}
        if config.link_names:
            message["link_names"] = True
        if texts["message_text"]:
            message["text"] = texts["message_text"]
        # Where the attachment has no text, people read what the user has put elsewhere.
        told = fitted["text"].told if texts["text"] else fitted["message_text"].told | fitted["pretext"].told
        return ComposedMessage({**message, "attachments": [attachment]}, told)

    def headers(self) -> tuple[tuple[str, str], ...]:
        return bearer_header(self._config.token)

    def check_answer(self, body: bytes) -> None:
        """Slack answers 200 to what it refuses: `{"ok": false, "error": "…"}`, or a word other than `ok`."""
        text = body.decode("utf-8", "replace").strip()
        if text.startswith("{"):
            try:
                answer = json.loads(text)
            except (ValueError, RecursionError):
                return
            if isinstance(answer, dict) and answer.get("ok") is False:
                raise SendError(
                    f"Slack: {str(answer.get('error'))[:200]}", may_retry=False, reason="clientError"
                )
        elif text and text != "ok":
            raise SendError(f"Slack: {' '.join(text.split())[:200]}", may_retry=False, reason="clientError")


def _shorten(text: str) -> str:
    return cut(text, MAX_TEXT_CHARACTERS)


def _expand_action(action: Mapping[str, Any], expand: Callable[[str], str]) -> dict[str, object]:
    return {
        key: {name: expand(text) for name, text in value.items() if text}
        if isinstance(value, dict)
        else expand(value)
        for key, value in action.items()
    }


KIND = ChannelKind(
    name="slack",
    summary="an incoming webhook of Slack",
    sender=SlackSender,
    read=_read,
    read_globals=_read_globals,
    url=UrlForm(("slack",), "slack://[hooks.slack.com/services/]T…/B…/SECRET", _parse_url),
    texts=TEXTS,
    secret_keys=("api_url", "app_token", "slack_api_url", "slack_app_token"),
    plain_keys=("app_token",),
)
