"""incident.io: the body of a webhook, with a token of its alert source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    NO_SECRET,
    ComposedMessage,
    SecretText,
    encode,
    has_authorization,
    read_required_url,
    read_secret,
)
from gpuscope.judge.notify.channels import ChannelKind, JsonSender, WebhookUrlConfig, bearer_header, read_entry
from gpuscope.judge.notify.channels.webhook import webhook_body
from gpuscope.judge.notify.notification import Notification

MAX_BODY_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentioConfig(WebhookUrlConfig):
    kind: ClassVar[str] = "incidentio"
    token: SecretText = NO_SECRET
    """Sent as a bearer token; empty if `http_config` has the credentials."""
    max_alerts: int = 0


def _read(table: ConfigMapping, http: HttpConfig, own: None) -> IncidentioConfig:
    token, has_own = read_secret(table, "alert_source_token"), has_authorization(table)
    if token and has_own:
        table.fail("alert_source_token", "it is sent as authorization; remove authorization from http_config")
    if not token and not has_own and table.has("http_config"):
        table.fail("alert_source_token", "is missing, and http_config has no authorization")
    url, timeout = read_required_url(table, "url"), table.duration("timeout", 0.0)
    return read_entry(IncidentioConfig, table, http, url=url, token=token, timeout=timeout)


class IncidentioSender(JsonSender[IncidentioConfig]):
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

    def headers(self) -> tuple[tuple[str, str], ...]:
        return bearer_header(self._config.token)


KIND = ChannelKind(
    name="incidentio",
    summary="an alert source of incident.io",
    sender=IncidentioSender,
    read=_read,
    secret_keys=("alert_source_token",),
    plain_keys=("alert_source_token",),
)
