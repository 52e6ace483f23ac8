"""Jira: one issue per group of alerts, found again by a label with the group's hash.

A firing group makes or updates its issue and may reopen it; a resolved one updates it and may close it, by
transitions that the entry names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    NOBODY_TOLD,
    ComposedMessage,
    SendError,
    Told,
    cut,
    encode,
    finish,
    join_url,
    read_plain_url,
    request,
)
from gpuscope.judge.notify.channels import ApiUrlConfig, ChannelKind, JsonSender, read_entry
from gpuscope.judge.notify.channels.webhook import expand_document
from gpuscope.judge.notify.message_texts import default_template
from gpuscope.judge.notify.notification import FIRING, Notification

MAX_SUMMARY_CHARACTERS = 255
MAX_DESCRIPTION_CHARACTERS = 32_767
API_TYPES = ("auto", "cloud", "datacenter")
SUMMARY = default_template("jira.default.summary")
DESCRIPTION = default_template("jira.default.description")
PRIORITY = default_template("jira.default.priority")
TEXTS = """
{{ define "jira.default.summary" }}{{ template "__subject" . }}{{ end }}
{{ define "jira.default.description" }}{{ template "__text" . }}{{ end }}
{{ define "jira.default.priority" -}}
{{ $alerts := .Alerts.Resolved }}{{ if .Alerts.Firing }}{{ $alerts = .Alerts.Firing }}{{ end -}}
{{ $worst := "" -}}
{{ range $alerts }}{{ $worst = printf "%s,%s," $worst .Labels.severity }}{{ end -}}
{{ if match ",critical," $worst }}High{{ else if match ",warning," $worst }}Medium
{{- else if match ",info," $worst }}Low{{ end -}}
{{ end }}
"""


@dataclass(frozen=True, slots=True)
class JiraField:
    template: str
    is_updated: bool = True
    """In an issue that exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JiraConfig(ApiUrlConfig):
    kind: ClassVar[str] = "jira"
    project: str
    issue_type: str
    api_type: str = "auto"
    summary: JiraField = JiraField(SUMMARY)
    description: JiraField = JiraField(DESCRIPTION)
    priority: str = PRIORITY
    labels: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Documents whose texts are templates."""
    reopen_transition: str = ""
    resolve_transition: str = ""
    wont_fix_resolution: str = ""
    reopen_duration: float = 0.0


def _read_globals(table: ConfigMapping) -> str:
    return (
        read_plain_url(table, "jira_api_url", "") if table.has("jira_api_url") else table.text("jira_api_url")
    )


def _read(table: ConfigMapping, http: HttpConfig, api_url: str) -> JiraConfig:
    if not table.has("api_url") and not api_url:
        table.fail("api_url", "is missing, and so is jira_api_url in global")
    for key in ("project", "issue_type"):
        if not table.text(key):
            table.fail(key, "is missing")
    fields = table.raw("fields") or {}
    if not isinstance(fields, dict):
        table.fail("fields", "must be a mapping")
    return read_entry(
        JiraConfig,
        table,
        http,
        api_url=read_plain_url(table, "api_url", api_url),
        project=table.text("project"),
        issue_type=table.text("issue_type"),
        api_type=table.one_of("api_type", "auto", API_TYPES),
        summary=_read_field(table, "summary", SUMMARY),
        description=_read_field(table, "description", DESCRIPTION),
        labels=table.strings("labels"),
        fields=fields,
        reopen_duration=table.duration("reopen_duration", 0.0),
    )


def _read_field(table: ConfigMapping, key: str, default: str) -> JiraField:
    """A template, or a mapping that has it."""
    if not isinstance(table.raw(key), dict):
        return JiraField(table.text(key, default))
    part = table.table(key)
    text = JiraField(part.text("template", default), part.switch("enable_update", True))
    finish(part)
    return text


class JiraSender(JsonSender[JiraConfig]):
    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        issue = self._find_issue(notification, timeout_seconds)
        if issue is None and notification.status != FIRING:
            return NOBODY_TOLD  # there is nothing to close
        document, told = self.compose(notification, is_new=issue is None)
        if issue is None:
            self._request("POST", "issue", document, timeout_seconds)
            return told
        self._request("PUT", f"issue/{issue['key']}", document, timeout_seconds)
        self._move(issue, notification, timeout_seconds)
        return told

    def compose(self, notification: Notification, *, is_new: bool = True) -> ComposedMessage:
        config, messages = self._config, self._messages

        def expand(text: str) -> str:
            return messages.expand(text, notification)

        description, told = self._description(notification)
        fields: dict[str, object] = {
            "project": {"key": expand(config.project)},
            "issuetype": {"name": expand(config.issue_type)},
            "labels": sorted([*map(expand, config.labels), _label(notification)]),
        }
        if config.summary.is_updated or is_new:
            fields["summary"] = cut(
                messages.title(config.summary.template, notification), MAX_SUMMARY_CHARACTERS
            )
        if not config.description.is_updated and not is_new:
            told = NOBODY_TOLD
        elif description:
            fields["description"] = description
        if priority := expand(config.priority):
            fields["priority"] = {"name": priority}
        fields |= {key: expand_document(value, messages, notification) for key, value in config.fields.items()}
        return ComposedMessage({"fields": fields}, told)

    def _description(self, notification: Notification) -> tuple[object, Told]:
        template = self._config.description.template
        text, told = self._messages.fit(
            template, notification, lambda text: cut(text, MAX_DESCRIPTION_CHARACTERS)
        )
        if not urlsplit(self._config.api_url).path.rstrip("/").endswith("/3") or not text.strip():
            return text, told
        if self._messages.is_default(template):  # version 3 takes no text: a document of one paragraph
            paragraph = {"type": "paragraph", "content": [{"type": "text", "text": text}]}
            return {"type": "doc", "version": 1, "content": [paragraph]}, told
        try:
            return json.loads(text), told
        except (ValueError, RecursionError):
            raise SendError("description must be JSON for version 3 of Jira's API", may_retry=False) from None

    def _find_issue(self, notification: Notification, timeout_seconds: float) -> dict[str, Any] | None:
        config = self._config
        search = {
            "jql": self._query(notification),
            "maxResults": 2,
            "fields": ["status"],
        }
        path, url = "search", config.api_url
        is_atlassian = urlsplit(url).netloc.endswith("atlassian.net")
        if config.api_type == "cloud" or (config.api_type == "auto" and is_atlassian):
            path, url = "search/jql", f"{url.rstrip('/')}/".replace("/rest/api/2/", "/rest/api/3/", 1)
        answer = self._request("POST", path, search, timeout_seconds, url)
        issues = answer.get("issues") or []
        try:
            return {"key": str(issues[0]["key"]), "fields": issues[0].get("fields") or {}} if issues else None
        except (KeyError, TypeError, AttributeError, IndexError):
            raise SendError("the answer to Jira's search has no key of an issue", may_retry=False) from None

    def _query(self, notification: Notification) -> str:
        config = self._config
        terms = []
        if config.wont_fix_resolution:
            terms.append(f"(resolution is EMPTY or resolution != {_quoted(config.wont_fix_resolution)})")
        minutes = int(config.reopen_duration / 60)
        if notification.status == FIRING and config.reopen_transition and minutes > 0:
            terms.append(f"(resolutiondate is EMPTY OR resolutiondate >= -{minutes}m)")
        else:
            terms.append("statusCategory != Done")
        terms.append(f"project={_quoted(self._messages.expand(config.project, notification))}")
        terms.append(f"labels={_quoted(_label(notification))}")
        return " and ".join(terms) + " order by status ASC,resolutiondate DESC"

    def _move(self, issue: dict[str, Any], notification: Notification, timeout_seconds: float) -> None:
        """Reopen or close the issue, if it is not in that state yet."""
        status = issue["fields"].get("status")
        if not isinstance(status, dict):
            return
        is_done = (status.get("statusCategory") or {}).get("key") == "done"
        is_firing = notification.status == FIRING
        name = self._config.reopen_transition if is_firing else self._config.resolve_transition
        if is_done != is_firing or not name:
            return
        path = f"issue/{issue['key']}/transitions"
        known = self._request("GET", path, None, timeout_seconds).get("transitions") or []
        number = next((move.get("id") for move in known if move.get("name") == name), None)
        if number is None:
            raise SendError(f"Jira's issue {issue['key']} has no transition {name!r}", may_retry=False)
        self._request("POST", path, {"transition": {"id": number}}, timeout_seconds)

    def _request(
        self, method: str, path: str, document: object, timeout_seconds: float, url: str = ""
    ) -> dict[str, Any]:
        response = request(
            join_url(url or self._config.api_url, path),
            b"" if document is None else encode(document),
            self._config.http,
            timeout_seconds,
            method=method,
            retried_statuses=(429,),
            headers=(("accept-language", "en"),),
        )
        if not response.body.strip():
            return {}
        try:
            answer = json.loads(response.body)
        except (ValueError, RecursionError):
            answer = None
        return answer if isinstance(answer, dict) else {}


def _label(notification: Notification) -> str:
    return f"ALERT{{{notification.group_hash}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


KIND = ChannelKind(
    name="jira",
    summary="an issue in Jira",
    sender=JiraSender,
    read=_read,
    read_globals=_read_globals,
    texts=TEXTS,
    plain_keys=("reopen_transition", "resolve_transition", "wont_fix_resolution"),
)
