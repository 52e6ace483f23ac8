"""Kinds of channels that Alertmanager has: our default messages, which alerts they tell, what is retried."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.base.time_text import parse_rfc3339
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.channel import Channel, SendError
from gpuscope.judge.notify.channels import build_receiver, load_messages
from gpuscope.judge.notify.channels.jira import PRIORITY, JiraConfig, JiraField, JiraSender
from gpuscope.judge.notify.channels.pushover import PushoverConfig
from gpuscope.judge.notify.channels.sns import (
    DEFAULTS,
    AwsCredentials,
    SnsConfig,
    SnsSender,
    find_credentials,
    sign_post,
)
from tests.goldens import check_golden
from tests.notify.kind_sink import KindSink, running_kind_sink
from tests.notify.test_senders import HOSTILE, notification

ENTRIES = {
    "opsgenie": "api_key: k, api_url: SINK",
    "webex": "room_id: r, api_url: SINK/v1, http_config: {authorization: {credentials: t}}",
    "pushover": "user_key: u, token: t",
    "victorops": "api_key: k, routing_key: r, api_url: SINK",
    "mattermost": "webhook_url: SINK/hook",
    "rocketchat": "token: t, token_id: i, api_url: SINK",
    "msteams": "webhook_url: SINK/hook",
    "wechat": "api_secret: s, corp_id: c, api_url: SINK",
    "jira": "project: P, issue_type: Bug, api_url: SINK/new/2",
    "sns": "topic_arn: t, api_url: SINK, sigv4: {region: r, access_key: a, secret_key: s}",
    "incidentio": "url: SINK/hook, alert_source_token: t",
}
"""With the default messages."""


def channel(kind: str, sink: KindSink, tmp_path: Path) -> Channel:
    path = tmp_path / "alertmanager.yml"
    text = ENTRIES[kind].replace("SINK", sink.url)
    path.write_text(f"route: {{receiver: all}}\nreceivers: [{{name: all, {kind}_configs: [{{{text}}}]}}]\n")
    config = load_alerting(path)
    configs = [
        replace(entry, api_url=f"{sink.url}/1") if isinstance(entry, PushoverConfig) else entry
        for entry in config.receivers["all"].channels
    ]
    [built] = build_receiver("all", configs, config.messages)
    return built


@pytest.mark.parametrize("kind", ENTRIES)
def test_default_messages(kind: str, tmp_path: Path) -> None:
    with running_kind_sink(kind, tmp_path) as sink:
        built = channel(kind, sink, tmp_path)
        for sent in (notification(), notification(is_resolved=True), notification(HOSTILE)):
            built.sender.send(sent, 10.0)
    documents = [
        [sent.method, sent.path, dict(sent.query), dict(sent.headers), sent.body] for sent in sink.requests
    ]
    text = json.dumps(documents, indent=1, ensure_ascii=False).replace(sink.url, "SINK")
    check_golden(Path(f"notify/kind_{kind}.json"), text.encode())


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("opsgenie", 20), ("webex", 18), ("pushover", 2), ("victorops", 20), ("mattermost", 20),
        ("rocketchat", 20), ("msteams", 20), ("wechat", 4), ("jira", 20), ("sns", 20), ("incidentio", 30),
    ],
)  # fmt: skip
def test_a_kind_says_which_alerts_it_has_told_in_full(kind: str, told: int, tmp_path: Path) -> None:
    with running_kind_sink(kind, tmp_path) as sink:
        assert len(channel(kind, sink, tmp_path).sender.send(notification(count=30), 10.0)) == told


@pytest.mark.parametrize(
    ("kind", "status", "may_retry"),
    [
        *((kind, 500, True) for kind in ENTRIES),
        *((kind, 400, False) for kind in ENTRIES if kind != "wechat"),
        *((kind, 429, kind in ("opsgenie", "incidentio", "jira")) for kind in ENTRIES if kind != "wechat"),
    ],
)
def test_which_answers_are_worth_another_attempt(
    kind: str, status: int, may_retry: bool, tmp_path: Path
) -> None:
    with running_kind_sink(kind, tmp_path) as sink:
        sink.statuses = [status]
        with pytest.raises(SendError) as caught:
            channel(kind, sink, tmp_path).sender.send(notification(), 10.0)
    assert caught.value.may_retry == may_retry


def _wechat(code: int) -> Callable[[str], object]:
    return lambda path: {"access_token": "t"} if path.endswith("gettoken") else {"errcode": code, "errmsg": "m"}


@pytest.mark.parametrize(
    ("kind", "answer", "reason", "may_retry"),
    [
        ("rocketchat", lambda path: {"success": False, "error": "no such channel"}, "no such channel", False),
        ("rocketchat", lambda path: {}, "Rocket.Chat", False),
        ("wechat", lambda path: {"errcode": 40013}, "gave no token", False),
        ("wechat", _wechat(42001), "WeChat: m", True),
        ("wechat", _wechat(40003), "WeChat: m", False),
    ],
)
def test_a_refusal_with_status_200_is_an_error(
    kind: str, answer: Callable[[str], object], reason: str, may_retry: bool, tmp_path: Path
) -> None:
    with running_kind_sink(kind, tmp_path) as sink:
        sink.answer = answer
        with pytest.raises(SendError, match=reason) as caught:
            channel(kind, sink, tmp_path).sender.send(notification(), 10.0)
    assert caught.value.may_retry == may_retry


@pytest.mark.parametrize(
    ("severities", "priority"),
    [
        (["info"], "Low"), (["info", "warning"], "Medium"), (["critical", "info"], "High"), (["odd"], ""),
        (["warning", "infox"], "Medium"),
    ],
)  # fmt: skip
def test_jiras_priority_is_that_of_the_worst_alert(severities: list[str], priority: str) -> None:
    sent = notification(count=len(severities))
    alerts = [
        replace(alert, labels={**alert.labels, "severity": severity})
        for alert, severity in zip(sent.alerts, severities, strict=True)
    ]
    assert load_messages().expand(PRIORITY, replace(sent, alerts=alerts)) == priority


def test_jiras_version_3_gets_the_default_description_as_a_document(tmp_path: Path) -> None:
    with running_kind_sink("jira", tmp_path) as sink:
        config = JiraConfig(api_url=f"{sink.url}/new/rest/api/3", project="P", issue_type="Bug")
        JiraSender(config, load_messages()).send(notification(), 10.0)
        description = sink.requests[-1].body["fields"]["description"]
        assert description["type"] == "doc"
        assert description["content"][0]["content"][0]["text"].startswith("Firing\n")
        own = replace(config, description=JiraField("{{ .Status }}"))
        with pytest.raises(SendError, match="must be JSON"):
            JiraSender(own, load_messages()).send(notification(), 10.0)


@pytest.mark.parametrize(
    ("content_type", "body", "signed", "signature"),
    [
        ("", b"", "host;x-amz-date", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "application/x-www-form-urlencoded",
            b"Param1=value1",
            "content-type;host;x-amz-date",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ],
    ids=["post-vanilla", "post-x-www-form-urlencoded"],
)
def test_a_signature_is_that_of_the_published_test_suite(
    content_type: str, body: bytes, signed: str, signature: str
) -> None:
    """Of AWS' test suite for Signature Version 4."""
    credentials = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    headers = dict(
        sign_post(
            "https://example.amazonaws.com/",
            body,
            content_type,
            credentials,
            region="us-east-1",
            service="service",
            now=parse_rfc3339("2015-08-30T12:36:00Z"),
        )
    )
    assert headers["x-amz-date"] == "20150830T123600Z"
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders={signed}, Signature={signature}"
    )


def test_where_an_access_key_is_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = %s\n[p]\naws_access_key_id = p\n"
    )
    files = {"AWS_SHARED_CREDENTIALS_FILE": str(path)}
    keys = {"AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    assert find_credentials("", {**files, **keys}) == AwsCredentials("e", "s", "t")
    assert find_credentials("", files) == AwsCredentials("d", "%s")
    for profile in ("p", "nope"):
        with pytest.raises(SendError, match="no AWS access key"):
            find_credentials(profile, {**files, **keys})


def test_a_role_fails_only_the_messages_of_its_receiver(tmp_path: Path) -> None:
    config = SnsConfig(region="r", role_arn="arn:aws:iam::1:role/x", texts={**DEFAULTS, "topic_arn": "t"})
    with pytest.raises(SendError, match="role_arn is not supported here") as caught:
        SnsSender(config, load_messages()).send(notification(), 10.0)
    assert not caught.value.may_retry


def test_wechats_token_is_asked_for_once_until_it_expires(tmp_path: Path) -> None:
    with running_kind_sink("wechat", tmp_path) as sink:
        built = channel("wechat", sink, tmp_path)
        built.sender.send(notification(), 10.0)
        built.sender.send(notification(), 10.0)
        sink.answer = _wechat(42001)
        with pytest.raises(SendError):
            built.sender.send(notification(), 10.0)
        sink.answer = _wechat(0)
        built.sender.send(notification(), 10.0)
    assert [sent.path for sent in sink.requests].count("/gettoken") == 2


def test_no_secret_of_a_kind_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text("""
global:
  opsgenie_api_key: hidden1
  victorops_api_key: hidden2
  mattermost_webhook_url: http://hidden3/
  rocketchat_token: hidden4
  rocketchat_token_id: hidden5
  wechat_api_secret: hidden6
route: {receiver: all}
receivers:
- name: all
  opsgenie_configs: [{api_key: hidden7}]
  victorops_configs: [{api_key: hidden8, routing_key: r}]
  pushover_configs: [{user_key: hidden9, token: hidden10}]
  mattermost_configs: [{webhook_url: 'http://hidden11/'}]
  rocketchat_configs: [{token: hidden12, token_id: hidden13}]
  msteams_configs: [{webhook_url: 'http://hidden14/'}]
  wechat_configs: [{api_secret: hidden15, corp_id: c}]
  incidentio_configs: [{url: 'http://i/', alert_source_token: hidden16}]
  sns_configs: [{topic_arn: t, sigv4: {access_key: a, secret_key: hidden17}}]
  webex_configs: [{room_id: r, http_config: {authorization: {credentials: hidden18}}}]
""")
    config = load_alerting(path)
    assert "hidden" not in config.original
    assert "hidden" not in repr(config.receivers)
