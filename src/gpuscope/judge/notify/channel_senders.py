"""Builds the channels of a configuration: each entry of a receiver with the sender of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gpuscope.judge.notify.alerting_config import AlertingConfig
from gpuscope.judge.notify.channel_targets import channel_target
from gpuscope.judge.notify.channels import Channel, ChannelKey, Sender
from gpuscope.judge.notify.message_templates import Messages
from gpuscope.judge.notify.senders.apprise_channel import AppriseSender
from gpuscope.judge.notify.senders.discord import DiscordSender
from gpuscope.judge.notify.senders.mail import EmailSender
from gpuscope.judge.notify.senders.msteamsv2 import MsTeamsV2Sender
from gpuscope.judge.notify.senders.ntfy import NtfySender
from gpuscope.judge.notify.senders.pagerduty import PagerDutySender
from gpuscope.judge.notify.senders.slack import SlackSender
from gpuscope.judge.notify.senders.telegram import TelegramSender
from gpuscope.judge.notify.senders.webhook import WebhookSender

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
