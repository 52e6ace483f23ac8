"""PagerDuty: the Events API v2, or v1 where a service key is given. One incident per group of alerts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import SplitResult

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    NO_SECRET,
    NOBODY_TOLD,
    ComposedMessage,
    SecretText,
    SendError,
    cut,
    encode,
    read_plain_url,
    read_secret,
    read_text_tables,
    read_texts,
    url_host,
)
from gpuscope.judge.notify.channels import (
    ChannelKind,
    HttpChannelConfig,
    JsonSender,
    UrlForm,
    read_entry,
    url_segments,
)
from gpuscope.judge.notify.channels.webhook import expand_document
from gpuscope.judge.notify.message_texts import Messages, default_template
from gpuscope.judge.notify.notification import FIRING, Notification

MAX_SUMMARY_CHARACTERS = 1024
MAX_EVENT_BYTES = 512_000
V1_URL = "https://events.pagerduty.com/generic/2010-04-15/create_event.json"
V2_URL = "https://events.pagerduty.com/v2/enqueue"
CLIENT = default_template("pagerduty.default.client")
DEFAULTS = {
    "client": CLIENT,
    "client_url": default_template("pagerduty.default.clientURL"),
    "description": default_template("pagerduty.default.description"),
    "source": "",
    "severity": "",
    "class": "",
    "component": "",
    "group": "",
}
DETAILS = {
    "firing": '{{ template "pagerduty.default.instances" .Alerts.Firing }}',
    "resolved": '{{ template "pagerduty.default.instances" .Alerts.Resolved }}',
    "num_firing": "{{ .Alerts.Firing | len }}",
    "num_resolved": "{{ .Alerts.Resolved | len }}",
}
TEXTS = """
{{ define "pagerduty.default.client" }}{{ template "__alertmanager" . }}{{ end }}
{{ define "pagerduty.default.clientURL" }}{{ template "__alertmanagerURL" . }}{{ end }}
{{ define "pagerduty.default.description" }}{{ template "__subject" . }}{{ end }}
{{ define "pagerduty.default.instances" }}{{ template "__text_alert_list" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerDutyConfig(HttpChannelConfig):
    kind: ClassVar[str] = "pagerduty"
    routing_key: SecretText
    """Of the Events API v2."""
    service_key: SecretText = NO_SECRET
    """Of the older API v1, which is used if both are given, as in Alertmanager."""
    url: str = V2_URL
    texts: Mapping[str, str] = field(default_factory=lambda: {**DEFAULTS, "source": CLIENT})
    details: Mapping[str, Any] = field(default_factory=lambda: DETAILS)
    images: tuple[Mapping[str, str], ...] = ()
    links: tuple[Mapping[str, str], ...] = ()

    def target(self) -> str:
        return url_host(self.url)


def _read_globals(table: ConfigMapping) -> str:
    """The URL."""
    return read_plain_url(table, "pagerduty_url", V2_URL)


def _read(table: ConfigMapping, http: HttpConfig, url: str) -> PagerDutyConfig:
    routing_key, service_key = read_secret(table, "routing_key"), read_secret(table, "service_key")
    if not routing_key and not service_key:
        table.fail("routing_key", "give routing_key or service_key")
    texts = read_texts(table, DEFAULTS)
    texts["source"] = texts["source"] or texts["client"]
    details = table.raw("details") or {}
    if not isinstance(details, dict):
        table.fail("details", "must be a mapping")
    return read_entry(
        PagerDutyConfig,
        table,
        http,
        routing_key=routing_key,
        service_key=service_key,
        url=read_plain_url(table, "url", url),
        texts=texts,
        details={**DETAILS, **details},
        images=read_text_tables(table, "images", ("href", "alt", "src")),
        links=read_text_tables(table, "links", ("href", "text")),
        timeout=table.duration("timeout", 0.0),
    )


def _parse_url(url: str, parts: SplitResult) -> PagerDutyConfig | None:
    words = url_segments(parts)
    return PagerDutyConfig(routing_key=SecretText(words[0])) if len(words) == 1 else None


class PagerDutySender(JsonSender[PagerDutyConfig]):
    def __init__(self, config: PagerDutyConfig, messages: Messages) -> None:
        super().__init__(config, messages)
        if config.service_key:
            self.retried_statuses = (403,)  # v1's status for too many requests

    def compose(self, notification: Notification) -> ComposedMessage:
        config = self._config

        def expand(text: str) -> str:
            return self._messages.expand(text, notification)

        texts = {key: self._messages.title(text, notification) for key, text in config.texts.items()}
        details = expand_document(dict(config.details), self._messages, notification)
        action = "trigger" if notification.status == FIRING else "resolve"
        key = notification.group_hash
        build = self._v1 if config.service_key else self._v2
        document = build(texts, details, action, key, expand)
        told = self._messages.fit(str(config.details.get("firing", "")), notification).told
        if len(encode(document)) > MAX_EVENT_BYTES:
            too_large = {"error": "details are left out: the event would be larger than PagerDuty accepts"}
            document, told = build(texts, too_large, action, key, expand), NOBODY_TOLD
        if not (document.get("routing_key") or document.get("service_key")):
            raise SendError("the routing key is empty", may_retry=False)
        return ComposedMessage(document, told)

    def _v2(
        self, texts: dict[str, str], details: object, action: str, key: str, expand: Callable[[str], str]
    ) -> dict[str, object]:
        config = self._config
        payload = {
            "summary": cut(texts["description"], MAX_SUMMARY_CHARACTERS),
            "source": texts["source"],
            "severity": texts["severity"] or "error",
            **{name: texts[name] for name in ("class", "component", "group") if texts[name]},
            "custom_details": details,
        }
        images = [{name: expand(text) for name, text in image.items()} for image in config.images]
        links = [{name: expand(text) for name, text in link.items()} for link in config.links]
        document: dict[str, object] = {
            "routing_key": expand(config.routing_key.reveal()),
            "dedup_key": key,
            "event_action": action,
            "payload": payload,
            "client": texts["client"],
            "client_url": texts["client_url"],
        }
        if images := [image for image in images if image.get("src")]:
            document["images"] = images
        if links := [link for link in links if link.get("href")]:
            document["links"] = links
        return document

    def _v1(
        self, texts: dict[str, str], details: object, action: str, key: str, expand: Callable[[str], str]
    ) -> dict[str, object]:
        document: dict[str, object] = {
            "service_key": expand(self._config.service_key.reveal()),
            "incident_key": key,
            "event_type": action,
            "description": cut(texts["description"], MAX_SUMMARY_CHARACTERS),
            "details": details,
        }
        if action == "trigger":
            document |= {"client": texts["client"], "client_url": texts["client_url"]}
        return document

    def url(self, notification: Notification) -> str:
        return V1_URL if self._config.service_key else self._config.url


KIND = ChannelKind(
    name="pagerduty",
    summary="PagerDuty's Events API v2",
    sender=PagerDutySender,
    read=_read,
    read_globals=_read_globals,
    url=UrlForm(("pagerduty",), "pagerduty://ROUTING_KEY", _parse_url),
    texts=TEXTS,
    secret_keys=("routing_key", "service_key"),
)
