"""Slack: one attachment per message, through an incoming webhook or an app's token.

Labels are escaped, so that a name such as `<!channel>` notifies nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from gpuscope.judge.notify.channel_configs import SlackConfig
from gpuscope.judge.notify.channels import SendError, Told
from gpuscope.judge.notify.default_messages import escape_slack
from gpuscope.judge.notify.message_templates import Messages, MessageStyle
from gpuscope.judge.notify.notification import Notification
from gpuscope.judge.notify.senders.json_post import ComposedMessage, attempt_seconds, cut, post_json

MAX_TITLE_CHARACTERS = 1024
MAX_TEXT_CHARACTERS = 30_000
_ATTACHMENT = (
    "title_link",
    "pretext",
    "text",
    "fallback",
    "callback_id",
    "image_url",
    "thumb_url",
    "footer",
    "color",
)
_MESSAGE = ("channel", "username", "icon_emoji", "icon_url")
_ESCAPED_DEFAULTS = ("title", "fallback")
"""Their default messages are plain text."""


class SlackSender:
    def __init__(self, config: SlackConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def compose(self, notification: Notification) -> ComposedMessage:
        config = self._config

        def expand(text: str) -> str:
            return self._messages.expand(text, notification, MessageStyle.SLACK)

        fitted = {
            key: self._messages.fit(text, notification, _shorten, MessageStyle.SLACK)
            for key, text in config.texts.items()
        }
        texts = {key: one.text for key, one in fitted.items()}
        for key in _ESCAPED_DEFAULTS:
            if self._messages.is_default(config.texts[key]):
                texts[key] = escape_slack(texts[key])
        attachment: dict[str, object] = {"title": cut(texts["title"], MAX_TITLE_CHARACTERS)}
        attachment |= {key: texts[key] for key in _ATTACHMENT if texts[key]}
        attachment["mrkdwn_in"] = list(config.mrkdwn_in)
        if config.fields:
            attachment["fields"] = [
                {
                    "title": expand(one["title"]),
                    "value": expand(one["value"]),
                    "short": one.get("short", config.short_fields),
                }
                for one in config.fields
            ]
        if config.actions:
            attachment["actions"] = [_expand_action(dict(one), expand) for one in config.actions]
        message: dict[str, object] = {key: texts[key] for key in _MESSAGE if texts[key]}
        if config.link_names:
            message["link_names"] = True
        if texts["message_text"]:
            message["text"] = texts["message_text"]
        # Where the attachment has no text, people read what the user has put elsewhere.
        told = fitted["text"].told if texts["text"] else fitted["message_text"].told | fitted["pretext"].told
        return ComposedMessage({**message, "attachments": [attachment]}, told)

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        headers = (("authorization", f"Bearer {config.token.reveal()}"),) if config.token else ()
        document, told = self.compose(notification)
        response = post_json(
            config.url.reveal(),
            document,
            config.http,
            attempt_seconds(timeout_seconds, config.timeout),
            retried_statuses=(429,),
            headers=headers,
        )
        _check_answer(response.body)
        return told


def _shorten(text: str) -> str:
    return cut(text, MAX_TEXT_CHARACTERS)


def _expand_action(action: dict[str, object], expand: Callable[[str], str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in action.items():
        if isinstance(value, dict):
            found[key] = {name: expand(str(text)) for name, text in value.items() if text}
        else:
            found[key] = expand(str(value))
    return found


def _check_answer(body: bytes) -> None:
    """Slack answers 200 also to what it refuses: `{"ok": false, "error": "…"}`, or a word other than `ok`."""
    text = body.decode("utf-8", "replace").strip()
    if text.startswith("{"):
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(answer, dict) and answer.get("ok") is False:
            raise SendError(f"Slack: {str(answer.get('error'))[:200]}", may_retry=False, reason="clientError")
    elif text and text != "ok":
        raise SendError(f"Slack: {' '.join(text.split())[:200]}", may_retry=False, reason="clientError")
