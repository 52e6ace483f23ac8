"""Whom a channel reaches, as a text for people: mail addresses, a Slack channel, the host of a webhook.

Never a secret: the path of a webhook's URL, a token and the topic of ntfy are left out. Empty if the address is
in a file, which may change while the server runs.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from gpuscope.judge.notify.channel_configs import (
    AppriseConfig,
    ChannelConfig,
    EmailConfig,
    PagerDutyConfig,
    SlackConfig,
    TelegramConfig,
)
from gpuscope.judge.notify.secret_text import SecretText

MAX_CHARACTERS = 200


def channel_target(config: ChannelConfig) -> str:
    return _target(config)[:MAX_CHARACTERS]


def _target(config: ChannelConfig) -> str:
    match config:
        case EmailConfig():
            return config.to
        case SlackConfig():
            return config.texts.get("channel") or _host_of_secret(config.url)
        case TelegramConfig():
            return "" if config.chat_id.path else f"chat {config.chat_id.reveal()}"
        case PagerDutyConfig():
            return _host(config.url)
        case AppriseConfig():
            return config.scheme
        case _:
            return _host_of_secret(config.url)


def _host_of_secret(url: SecretText) -> str:
    return "" if url.path else _host(url.reveal())


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return ""
    return f"{parts.hostname or ''}{port}" if "{{" not in parts.netloc else ""
