"""PagerDuty: the Events API v2, or v1 where a service key is given. One incident per group of alerts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from gpuscope.judge.notify.channel_configs import PagerDutyConfig
from gpuscope.judge.notify.channels import NOBODY_TOLD, SendError, Told
from gpuscope.judge.notify.default_messages import listed_alerts
from gpuscope.judge.notify.message_templates import Messages
from gpuscope.judge.notify.notification import FIRING, Notification
from gpuscope.judge.notify.senders.json_post import ComposedMessage, attempt_seconds, cut, encode, post_json
from gpuscope.judge.notify.senders.webhook import expand_document

MAX_SUMMARY_CHARACTERS = 1024
MAX_EVENT_BYTES = 512_000
V1_URL = "https://events.pagerduty.com/generic/2010-04-15/create_event.json"


def group_hash(group_key: str) -> str:
    """The same for every message about a group, so that a resolution finds its incident."""
    return hashlib.sha256(group_key.encode("utf-8", "replace")).hexdigest()


class PagerDutySender:
    def __init__(self, config: PagerDutyConfig, messages: Messages) -> None:
        self._config = config
        self._messages = messages

    def compose(self, notification: Notification) -> ComposedMessage:
        config = self._config

        def expand(text: str) -> str:
            return self._messages.expand(text, notification)

        texts = {key: expand(text) for key, text in config.texts.items()}
        details = expand_document(dict(config.details), self._messages, notification)
        action = "trigger" if notification.status == FIRING else "resolve"
        key = group_hash(notification.group_key)
        build = self._v1 if config.service_key else self._v2
        document = build(texts, details, action, key, expand)
        listing = str(config.details.get("firing", ""))
        is_ours = self._messages.is_default(listing)
        told = listed_alerts(notification) if is_ours else self._messages.fit(listing, notification).told
        if len(encode(document)) > MAX_EVENT_BYTES:
            too_large = {"error": "details are left out: the event would be larger than PagerDuty accepts"}
            document, told = build(texts, too_large, action, key, expand), NOBODY_TOLD
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
        images = [{name: expand(text) for name, text in one.items()} for one in config.images]
        links = [{name: expand(text) for name, text in one.items()} for one in config.links]
        document: dict[str, object] = {
            "routing_key": expand(config.routing_key.reveal()),
            "dedup_key": key,
            "event_action": action,
            "payload": payload,
            "client": texts["client"],
            "client_url": texts["client_url"],
        }
        if images := [one for one in images if one.get("src")]:
            document["images"] = images
        if links := [one for one in links if one.get("href")]:
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

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        config = self._config
        document, told = self.compose(notification)
        if not (document.get("routing_key") or document.get("service_key")):
            raise SendError("the routing key is empty", may_retry=False)
        # Too many requests are a 403 in v1.
        url, status = (V1_URL, 403) if config.service_key else (config.url, 429)
        seconds = attempt_seconds(timeout_seconds, config.timeout)
        post_json(url, document, config.http, seconds, retried_statuses=(status,))
        return told
