"""Builds the channels of a configuration: each entry of a receiver with the sender of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gpuscope.notify.alerting_config import AlertingConfig
from gpuscope.notify.channel_targets import channel_target
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


def build_channels(config: AlertingConfig) -> dict[str, list[Channel]]:
    """By receiver."""
    found: dict[str, list[Channel]] = {}
    for receiver in config.receivers.values():
        positions: Counter[str] = Counter()
        channels = found[receiver.name] = []
        for one in receiver.channels:
            key = ChannelKey(receiver.name, one.kind, positions[one.kind])
            positions[one.kind] += 1
            sender = SENDERS[one.kind](one, config.messages)
            channels.append(Channel(key, one.send_resolved, sender, channel_target(one)))
    return found
