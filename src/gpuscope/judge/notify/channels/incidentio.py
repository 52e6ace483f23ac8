"""incident.io: the body of a webhook, with a token of its alert source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    NO_SECRET,
    PLAIN_HTTP,
    ComposedMessage,
    SecretText,
    Told,
    attempt_seconds,
    encode,
    has_authorization,
    post_json,
    read_channel_http,
    read_required_url,
    read_secret,
)
from gpuscope.judge.notify.channels import ChannelKind
from gpuscope.judge.notify.channels.webhook import webhook_body
from gpuscope.judge.notify.message_texts import Messages
from gpuscope.judge.notify.notification import Notification

MAX_BODY_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentioConfig:
    kind: ClassVar[str] = "incidentio"
    url: SecretText
    token: SecretText = NO_SECRET
    """Sent as a bearer token; empty if `http_config` has the credentials."""
    send_resolved: bool = True
    http: HttpConfig = PLAIN_HTTP
    max_alerts: int = 0
    timeout: float = 0.0
    """Of one attempt; 0 means: until the group's next flush."""

    def target(self) -> str:
        return self.url.host()


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> IncidentioConfig:
    token, has_own = read_secret(table, "alert_source_token"), has_authorization(table)
    if token and has_own:
        table.fail("alert_source_token", "it is sent as authorization; remove authorization from http_config")
    if not token and not has_own and table.has("http_config"):
        table.fail("alert_source_token", "is missing, and http_config has no authorization")
    return IncidentioConfig(
        url=read_required_url(table, "url"),
        token=token,
        send_resolved=table.switch("send_resolved", True),
        http=read_channel_http(table, http),
        max_alerts=table.count("max_alerts", 0),
        timeout=table.duration("timeout", 0.0),
    )


class IncidentioSender:
    def __init__(self, config: IncidentioConfig, messages: Messages) -> None:
        self._config = config

    def compose(self, notification: Notification) -> ComposedMessage:
        most = self._config.max_alerts
        document: dict[str, Any] = {**webhook_body(notification, most), "version": "1"}
        told = notification.first(most) if most else notification
        if (
            len(encode(document)) > MAX_BODY_BYTES
        ):  # incident.io makes one incident of a group: one alert will do
            document["alerts"] = document["alerts"][:1]
            told = notification.first(1)
        return ComposedMessage(document, told.fingerprints)

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        document, told = self.compose(notification)
        post_json(
            config.url.reveal(),
            document,
            config.http,
            attempt_seconds(timeout_seconds, config.timeout),
            retried_statuses=(429,),
            headers=(("authorization", f"Bearer {config.token.reveal()}"),) if config.token else (),
        )
        return told


KIND = ChannelKind(
    name="incidentio",
    summary="an alert source of incident.io",
    sender=IncidentioSender,
    read=_read,
    secret_keys=("alert_source_token",),
    plain_keys=("alert_source_token",),
)
