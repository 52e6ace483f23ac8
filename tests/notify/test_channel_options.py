"""Options of the channels, each by what arrives: defaults, global values, templates, time limits, lengths."""

from __future__ import annotations

import email
import json
from collections.abc import Iterator
from email.policy import SMTP
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.blocking_http import HttpResponse
from gpuscope.cli import main
from gpuscope.judge.notify.alerting_config import build_channels
from gpuscope.judge.notify.channel import SecretText, SendError, encode
from gpuscope.judge.notify.channels import discord, load_messages, msteamsv2, ntfy, pagerduty, slack, telegram
from tests.notify.test_senders import AT, load, mail_config, mail_sender, notification, send_all
from tests.notify.timeline import Sink, running_sink

EVERY_KIND = """
global:
  slack_api_url: SINK/slack
  telegram_api_url: SINK/telegram
  telegram_bot_token: '1:a'
  pagerduty_url: SINK/pagerduty
  smtp_from: a@example.org
  smtp_smarthost: 127.0.0.1:1
route: {receiver: all}
receivers:
- name: all
  webhook_configs: [{url: SINK/webhook}]
  email_configs: [{to: b@example.org}]
  slack_configs: [{}]
  msteamsv2_configs: [{webhook_url: SINK/teams}]
  discord_configs: [{webhook_url: SINK/discord}]
  telegram_configs: [{chat_id: 1}]
  pagerduty_configs: [{routing_key: k}]
"""


@pytest.fixture
def sink() -> Iterator[Sink]:
    with running_sink() as running:
        running.body = b"ok"
        yield running


def one_receiver(channels: str) -> str:
    return f"route: {{receiver: all}}\nreceivers: [{{name: all, {channels}}}]\n"


def test_resolutions_are_sent_by_default_but_for_mail_and_slack(tmp_path: Path) -> None:
    channels = build_channels(load(tmp_path, "http://127.0.0.1:1", EVERY_KIND))["all"]
    assert {one.key.kind: one.sends_resolved for one in channels} == {
        "webhook": True, "email": False, "slack": False, "msteamsv2": True, "discord": True, "telegram": True,
        "pagerduty": True,
    }  # fmt: skip


def test_too_many_requests_are_retried_but_for_webhooks(sink: Sink, tmp_path: Path) -> None:
    found = {}
    for channel in build_channels(load(tmp_path, sink.url, EVERY_KIND))["all"]:
        if channel.key.kind == "email":
            continue
        for status in (429, 403):
            sink.answers = [status]
            with pytest.raises(SendError) as caught:
                channel.sender.send(notification(), 10.0)
            found[channel.key.kind, status] = caught.value.may_retry
    assert {kind for (kind, status), may_retry in found.items() if may_retry} == {
        "slack", "msteamsv2", "discord", "telegram", "pagerduty",
    }  # fmt: skip
    assert not any(may_retry for (_, status), may_retry in found.items() if status == 403)


def test_the_global_http_config_is_used_unless_a_channel_has_its_own(sink: Sink, tmp_path: Path) -> None:
    text = "global: {http_config: {authorization: {credentials: everywhere}}}\n" + one_receiver(
        "webhook_configs: [{url: SINK/a}, {url: SINK/b, http_config: {basic_auth: {username: u, password: p}}}]"
    )
    send_all(load(tmp_path, sink.url, text), notification())
    assert [one["authorization"] for one in sink.headers] == ["Bearer everywhere", "Basic dTpw"]


def test_credentials_in_a_url_come_before_those_of_http_config(sink: Sink, tmp_path: Path) -> None:
    text = "global: {http_config: {authorization: {credentials: everywhere}}}\n" + one_receiver(
        "webhook_configs: [{url: SINK/a}]"
    )
    send_all(load(tmp_path, sink.url.replace("http://", "http://u:p@"), text), notification())
    assert sink.headers[0]["authorization"] == "Basic dTpw"


def test_the_global_slack_token_is_used(sink: Sink, tmp_path: Path) -> None:
    text = "global: {slack_app_token: xoxb-1, slack_app_url: SINK/app}\n" + one_receiver("slack_configs: [{}]")
    send_all(load(tmp_path, sink.url, text), notification())
    assert [path for _, path, _ in sink.requests] == ["/app"]
    assert sink.headers[0]["authorization"] == "Bearer xoxb-1"


def test_the_url_of_a_webhook_is_a_template_and_may_be_in_a_file(sink: Sink, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("SINK/file/{{ .Status }}\n".replace("SINK", sink.url))
    text = one_receiver(
        "webhook_configs: [{url: 'SINK/{{ .CommonLabels.node }}?a={{ .Receiver }}'}, {url_file: url}]"
    )
    send_all(load(tmp_path, sink.url, text), notification("ä b"))
    assert [path for _, path, _ in sink.requests] == ["/%C3%A4%20b?a=all", "/file/firing"]


@pytest.mark.parametrize("kind", ["webhook", "slack", "pagerduty"])
def test_an_attempt_may_take_the_time_limit_of_its_channel(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: list[float] = []

    def post(url: str, document: object, http: object, timeout_seconds: float, **more: object) -> HttpResponse:
        seconds.append(timeout_seconds)
        return HttpResponse(200, b"ok", ())

    monkeypatch.setattr("gpuscope.judge.notify.channels.post_json", post)
    keys = {"webhook": "url: 'http://h/'", "slack": "api_url: 'http://h/'", "pagerduty": "routing_key: k"}[kind]
    for timeout in ("", ", timeout: 3s", ", timeout: 20s"):
        send_all(load(tmp_path, "", one_receiver(f"{kind}_configs: [{{{keys}{timeout}}}]")), notification())
    assert seconds == [10.0, 3.0, 10.0]  # 10 s are left until the next flush


def test_max_alerts_counts_what_is_left_out(sink: Sink, tmp_path: Path) -> None:
    for most, kept, truncated in ((2, 2, 1), (3, 3, 0), (0, 3, 0)):
        text = one_receiver(f"webhook_configs: [{{url: SINK/hook, max_alerts: {most}}}]")
        send_all(load(tmp_path, sink.url, text), notification(count=3))
        body = json.loads(sink.requests[-1][2])
        assert (len(body["alerts"]), body["truncatedAlerts"]) == (kept, truncated)


def pagerduty_event(tmp_path: Path, keys: str, **more: Any) -> dict[str, Any]:
    [channel] = build_channels(load(tmp_path, "", one_receiver(f"pagerduty_configs: [{{{keys}}}]")))["all"]
    assert isinstance(channel.sender, pagerduty.PagerDutySender)
    return json.loads(json.dumps(channel.sender.compose(notification(**more)).document))  # type: ignore[no-any-return]


def test_pagerduty_has_one_incident_per_group(tmp_path: Path) -> None:
    firing, resolved = (
        pagerduty_event(tmp_path, "routing_key: k", is_resolved=is_resolved) for is_resolved in (False, True)
    )
    assert (firing["event_action"], resolved["event_action"]) == ("trigger", "resolve")
    assert firing["dedup_key"] == resolved["dedup_key"]
    assert firing["payload"]["severity"] == "error"
    assert firing["payload"]["source"] == firing["client"]
    assert firing["payload"]["custom_details"].keys() == {"firing", "resolved", "num_firing", "num_resolved"}
    own = pagerduty_event(tmp_path, "routing_key: k, details: {firing: x, more: '{{ .Status }}'}")
    assert own["payload"]["custom_details"]["firing"] == "x"
    assert own["payload"]["custom_details"]["more"] == "firing"


@pytest.mark.parametrize("keys", ["service_key: s", "service_key: s, routing_key: r"])
def test_a_service_key_is_for_pagerdutys_older_api(
    keys: str, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagerduty, "V1_URL", f"{sink.url}/v1")
    sink.answers = [403, 200]
    config = load(tmp_path, sink.url, one_receiver(f"pagerduty_configs: [{{{keys}, url: SINK/v2}}]"))
    with pytest.raises(SendError) as caught:
        send_all(config, notification())
    assert caught.value.may_retry  # 403: too many requests
    send_all(config, notification(is_resolved=True))
    assert [path for _, path, _ in sink.requests] == ["/v1", "/v1"]
    trigger, resolve = (json.loads(body) for _, _, body in sink.requests)
    assert (trigger["service_key"], trigger["event_type"], resolve["event_type"]) == ("s", "trigger", "resolve")
    assert trigger["incident_key"] == resolve["incident_key"]


Documented = discord.DiscordSender | msteamsv2.MsTeamsV2Sender | slack.SlackSender | pagerduty.PagerDutySender


@pytest.mark.parametrize("value", ["<&*_`", "\u6e29\u5ea6", "\\"], ids=["markup", "Chinese", "backslash"])
def test_texts_are_as_short_as_each_service_requires(value: str, tmp_path: Path) -> None:
    """A service refuses a longer text, and the message with it."""
    long = notification(value * 4000, count=30)
    documents: dict[str, Any] = {
        channel.key.kind: channel.sender.compose(long).document
        for channel in build_channels(load(tmp_path, "http://127.0.0.1:1", EVERY_KIND))["all"]
        if isinstance(channel.sender, Documented)
    }
    [embed] = documents["discord"]["embeds"]
    assert (len(embed["title"]) <= 256, len(embed["description"]) <= 4096) == (True, True)
    assert len(documents["discord"]["content"]) <= 2000
    assert 10_000 < len(encode(documents["msteamsv2"])) < 28_000
    [attachment] = documents["slack"]["attachments"]
    assert (len(attachment["title"]) <= 1024, len(attachment["text"]) <= 30_000) == (True, True)
    assert len(documents["pagerduty"]["payload"]["summary"]) <= 1024
    assert len(encode(documents["pagerduty"])) <= 512_000
    messages, text = load_messages(), SecretText("1")
    for mode in ("HTML", "MarkdownV2", "Markdown", ""):
        config = telegram.TelegramConfig(bot_token=text, chat_id=text, parse_mode=mode)
        assert len(str(telegram.TelegramSender(config, messages).compose(long).document["text"])) <= 4096
    push = ntfy.NtfySender(ntfy.NtfyConfig(url=text, topic=text), messages).compose(long).document
    assert len(str(push["message"]).encode()) <= 4096
    assert len(str(push["title"])) <= 200


def test_mails_about_a_group_are_one_thread_or_one_a_day() -> None:
    def references(at: float, *, by_day: bool) -> str:
        sent = notification()
        object.__setattr__(sent, "sent_at", at)
        mail, *_ = mail_sender(mail_config(1, has_threads=True, threads_by_day=by_day)).message(sent)
        parsed = email.message_from_bytes(bytes(mail), policy=SMTP)
        assert parsed["In-Reply-To"] == parsed["References"] != parsed["Message-Id"]
        return str(parsed["References"])

    tomorrow = AT + 86_400
    assert references(AT, by_day=False) == references(tomorrow, by_day=False)
    assert references(AT, by_day=True) == references(AT + 60, by_day=True) != references(tomorrow, by_day=True)


def test_now_and_since_are_those_of_the_message(sink: Sink, tmp_path: Path) -> None:
    text = "{{ now.Unix }} {{ since (index .Alerts 0).StartsAt | humanizeDuration }}"
    config = load(
        tmp_path, sink.url, one_receiver(f"webhook_configs: [{{url: SINK/x, payload: {{at: '{text}'}}}}]")
    )
    send_all(config, notification())
    assert json.loads(sink.requests[0][2]) == {"at": "1800000000 1m 30s"}


TEMPLATES = """
global: {slack_api_url: SINK/slack, smtp_from: a@example.org, smtp_smarthost: '127.0.0.1:1'}
templates: ['*.tmpl']
route: {receiver: all}
receivers:
- name: all
  slack_configs: [{}, {text: '{{ template "slack.default.text" . }} Ask Ann.'}, {text: ROWS}]
  discord_configs: [{webhook_url: SINK/discord}]
"""
ROWS = "'{{ range .Alerts }}{{ .Name }}{{ range .Rows }}; {{ .Name }}: {{ .Value }}{{ end }}{{ end }}'"


def test_a_file_replaces_a_part_of_every_default_message_that_has_it(sink: Sink, tmp_path: Path) -> None:
    """As in Alertmanager. What a user wrote is not escaped as a whole: it may have markup."""
    (tmp_path / "own.tmpl").write_text('{{ define "__subject" }}*{{ .CommonLabels.node }}*{{ end }}')
    send_all(load(tmp_path, sink.url, TEMPLATES.replace("ROWS", ROWS)), notification("a<b"))
    slack, *_, discord = (json.loads(body) for _, _, body in sink.requests)
    assert slack["attachments"][0]["title"] == "*a&lt;b*"
    assert slack["attachments"][0]["fallback"].startswith("*a&lt;b* | http://gpuscope.example")
    assert discord["embeds"][0]["title"] == "*a\\<b*"


def test_templates_may_call_a_default_message_and_use_its_rows(sink: Sink, tmp_path: Path) -> None:
    send_all(load(tmp_path, sink.url, TEMPLATES.replace("ROWS", ROWS)), notification("<!channel>", count=30))
    default, called, rows, _ = (json.loads(body) for _, _, body in sink.requests)
    text = default["attachments"][0]["text"]
    assert "- Next step: Drain, reboot." in text
    assert "and 10 more" in text
    assert called["attachments"][0]["text"] == f"{text} Ask Ann."
    assert (
        "GpuXidHardware; Summary: XID 79 on &lt;!channel&gt;; Node: &lt;!channel&gt;"
        in rows["attachments"][0]["text"]
    )


def test_the_printed_defaults_are_a_template_file_that_changes_nothing(
    sink: Sink, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", "templates"]) == 0
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "default.tmpl").write_text(capsys.readouterr().out)
    for folder in (tmp_path, tmp_path / "own"):
        send_all(load(folder, sink.url, TEMPLATES.replace("ROWS", ROWS)), notification(count=2))
    bodies = [json.loads(body) for _, _, body in sink.requests]
    assert bodies[:3] == bodies[4:7]
    assert bodies[3]["embeds"][0]["description"] == bodies[7]["embeds"][0]["description"]
