"""Builds the channels of a configuration: each entry of a receiver with the sender of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gpuscope.notify.alerting_config import AlertingConfig
from gpuscope.notify.channels import Channel, ChannelKey, Sender
from gpuscope.notify.message_templates import Messages
from gpuscope.notify.senders.apprise_channel import AppriseSender
from gpuscope.notify.senders.discord import DiscordSender
from gpuscope.notify.senders.mail import EmailSender
from gpuscope.notify.senders.msteamsv2 import MsTeamsV2Sender
from gpuscope.notify.senders.ntfy import NtfySender
from gpuscope.notify.senders.pagerduty import PagerDutySender
from gpuscope.notify.senders.slack import SlackSender
from gpuscope.notify.senders.telegram import TelegramSender
from gpuscope.notify.senders.webhook import WebhookSender

SENDERS: Mapping[str, Callable[[Any, Messages], Sender]] = {
    "webhook": WebhookSender,
    "email": EmailSender,
    "slack": SlackSender,
    "msteamsv2": MsTeamsV2Sender,
    "discord": DiscordSender,
    "telegram": TelegramSender,
    "pagerduty": PagerDutySender,
    "ntfy": NtfySender,
    "apprise": AppriseSender,
}


def build_channels(config: AlertingConfig, messages: Messages) -> dict[str, list[Channel]]:
    """By receiver. ValueError names the receiver whose text is not a template that can be expanded."""
    found: dict[str, list[Channel]] = {}
    for receiver in config.receivers.values():
        positions: Counter[str] = Counter()
        channels = found[receiver.name] = []
        for one in receiver.channels:
            for text in _texts(one):
                try:
                    messages.check(text)
                except ValueError as error:
                    raise ValueError(
                        f"receiver {receiver.name!r}, {one.kind}: template {text[:60]!r}: {error}"
                    ) from None
            key = ChannelKey(receiver.name, one.kind, positions[one.kind])
            positions[one.kind] += 1
            channels.append(Channel(key, one.send_resolved, SENDERS[one.kind](one, messages)))
    return found


def _texts(value: object) -> Iterator[str]:
    """Every text of a channel's configuration, also in nested documents; secrets stay out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
    elif is_dataclass(value) and hasattr(value, "kind"):
        for row in fields(value):
            yield from _texts(getattr(value, row.name))
