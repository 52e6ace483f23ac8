"""Opsgenie: one alert per group, made, updated and closed by its alias, the hash of the group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    NOBODY_TOLD,
    ComposedMessage,
    SecretText,
    Told,
    cut,
    encode,
    join_url,
    read_text_tables,
    request,
)
from gpuscope.judge.notify.channels import ApiGlobals, ApiUrlConfig, ChannelKind, JsonSender, read_entry
from gpuscope.judge.notify.message_texts import default_template
from gpuscope.judge.notify.notification import FIRING, Notification

API_URL = "https://api.opsgenie.com/"
MAX_MESSAGE_CHARACTERS = 130
MAX_DESCRIPTION_CHARACTERS = 15_000
RESPONDER_TYPES = ("team", "teams", "user", "escalation", "schedule")
DEFAULTS = {
    "message": default_template("opsgenie.default.message"),
    "description": default_template("opsgenie.default.description"),
    "source": default_template("opsgenie.default.source"),
    "entity": "",
    "actions": "",
    "tags": "",
    "note": "",
    "priority": "",
}
TEXTS = """
{{ define "opsgenie.default.message" }}{{ template "__subject" . }}{{ end }}
{{ define "opsgenie.default.description" }}{{ template "__text" . }}{{ end }}
{{ define "opsgenie.default.source" }}{{ template "__alertmanagerURL" . }}{{ end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsgenieConfig(ApiUrlConfig):
    kind: ClassVar[str] = "opsgenie"
    api_key: SecretText
    """A template."""
    texts: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)
    details: Mapping[str, str] = field(default_factory=dict)
    """Sent with the common labels."""
    responders: tuple[Mapping[str, str], ...] = ()
    update_alerts: bool = False
    """Write message and description anew with each notification: Opsgenie only counts a repeated alert."""


def _read(table: ConfigMapping, http: HttpConfig, own: ApiGlobals) -> OpsgenieConfig:
    return read_entry(
        OpsgenieConfig,
        table,
        http,
        api_key=own.read_secret(table, "api_key"),
        api_url=own.read_url(table),
        details=table.labels("details"),
        responders=_read_responders(table),
    )


def _read_responders(table: ConfigMapping) -> tuple[Mapping[str, str], ...]:
    responders = read_text_tables(table, "responders", ("id", "name", "username", "type"))
    for responder in responders:
        if not any(responder.get(key) for key in ("id", "name", "username")):
            table.fail("responders", "give id, name or username of each")
        kind = responder.get("type", "")
        if "{{" not in kind and kind.lower() not in RESPONDER_TYPES:
            table.fail("responders", f"type: {kind!r} is not one of {', '.join(RESPONDER_TYPES)}")
    return responders


class OpsgenieSender(JsonSender[OpsgenieConfig]):
    def compose(self, notification: Notification) -> ComposedMessage:
        """The document that makes the alert."""
        config, messages = self._config, self._messages
        texts = {key: messages.title(text, notification) for key, text in config.texts.items()}
        description = messages.fit(
            config.texts["description"], notification, lambda text: cut(text, MAX_DESCRIPTION_CHARACTERS)
        )
        details = {key: messages.expand(text, notification) for key, text in config.details.items()}
        optional: dict[str, object] = {
            "description": description.text,
            "responders": self._responders(notification),
            "tags": _words(texts["tags"]),
            "note": texts["note"],
            "priority": texts["priority"],
            "entity": texts["entity"],
            "actions": _words(texts["actions"]),
        }
        document: dict[str, object] = {
            "alias": notification.group_hash,
            "message": cut(texts["message"], MAX_MESSAGE_CHARACTERS),
            "details": {**notification.common_labels, **details},
            "source": texts["source"],
            **{key: value for key, value in optional.items() if value},
        }
        return ComposedMessage(document, description.told)

    def _responders(self, notification: Notification) -> list[dict[str, str]]:
        responders: list[dict[str, str]] = []
        for entry in self._config.responders:
            expanded = {key: self._messages.expand(text, notification) for key, text in entry.items()}
            if expanded.get("type") == "teams":
                responders += [{"name": name, "type": "team"} for name in _words(expanded.get("name", ""))]
            elif any(expanded.values()):  # templates may leave one empty
                given = {key: text for key, text in expanded.items() if text}
                responders.append({**given, "type": expanded.get("type", "")})
        return responders

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        document, told = self.compose(notification)
        alert = f"v2/alerts/{notification.group_hash}"
        if notification.status != FIRING:
            self._request(
                "POST", f"{alert}/close", {"source": document["source"]}, notification, timeout_seconds
            )
            return NOBODY_TOLD
        self._request("POST", "v2/alerts", document, notification, timeout_seconds)
        if self._config.update_alerts:
            for key in ("message", "description"):
                part = {key: document[key]} if document.get(key) else {}
                self._request("PUT", f"{alert}/{key}", part, notification, timeout_seconds)
        return told

    def _request(
        self, method: str, path: str, document: object, notification: Notification, timeout_seconds: float
    ) -> None:
        config = self._config
        key = self._messages.expand(config.api_key.reveal(), notification).strip()
        query = {} if path == "v2/alerts" else {"identifierType": "alias"}
        request(
            join_url(config.api_url, path, query),
            encode(document),
            config.http,
            timeout_seconds,
            method=method,
            retried_statuses=(429,),
            headers=(("authorization", f"GenieKey {key}"),),
        )


def _words(text: str) -> list[str]:
    return [word for word in text.strip().split(",") if word]


KIND = ChannelKind(
    name="opsgenie",
    summary="Opsgenie's alert API",
    sender=OpsgenieSender,
    read=_read,
    read_globals=ApiGlobals.reader("opsgenie", API_URL, "api_key"),
    texts=TEXTS,
    secret_keys=("api_key", "opsgenie_api_key"),
)
