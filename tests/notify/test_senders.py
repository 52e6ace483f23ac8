"""What each kind of channel receives: whole payloads as goldens, kept by an HTTP or SMTP server."""

from __future__ import annotations

import email
import hmac
import json
import logging
import ssl
import sys
from collections.abc import Iterator
from dataclasses import replace
from email.policy import SMTP
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import load_settings
from gpuscope.cli import main
from gpuscope.cli.wiring.notifying import read_alerting
from gpuscope.judge.notify.alert_store import StoredAlert
from gpuscope.judge.notify.alerting_config import AlertingConfig, build_channels, load_alerting
from gpuscope.judge.notify.channel import SecretText, SendError
from gpuscope.judge.notify.channels import load_messages
from gpuscope.judge.notify.channels.apprise import AppriseConfig, AppriseSender, check_apprise_urls
from gpuscope.judge.notify.channels.email import EmailConfig, EmailSender
from gpuscope.judge.notify.channels.ntfy import NtfyConfig, NtfySender
from gpuscope.judge.notify.channels.webhook import WebhookConfig, WebhookSender
from gpuscope.judge.notify.notification import Notification, Reason
from tests.goldens import check_golden
from tests.notify.smtp_sink import CHALLENGE, running_smtp, serving_once
from tests.notify.timeline import Sink, running_sink
from tests.server.certificates import make_certificate

AT = 1_800_000_000.0
HOSTILE = (
    "<!channel> <@U1> @everyone [x](javascript:1) *b* `c` "
    "\r\nBcc: evil@example.org\n<script>&amp;\u2028\x1b[31m"
)

CONFIG = """
global: {slack_api_url: 'SINK/slack', telegram_api_url: 'SINK/telegram', pagerduty_url: 'SINK/pagerduty'}
route: {receiver: all}
receivers:
- name: all
  webhook_configs:
  - {url: 'SINK/webhook'}
  - {url: 'SINK/payload', payload: {who: '{{ .CommonLabels.node }}', list: ['{{ .Status }}', 1]}}
  slack_configs:
  - {channel: '#gpus'}
  - channel: '{{ .CommonLabels.severity }}'
    title: '{{ .CommonLabels.alertname }} on {{ .CommonLabels.node }}'
    text: '{{ range .Alerts }}{{ .Annotations.summary }}{{ end }}'
    fields:
    - {title: Node, value: '{{ .CommonLabels.node }}'}
    - {title: GPU, value: '{{ .CommonLabels.gpu }}', short: true}
    actions: [{type: button, text: Page, url: '{{ .ExternalURL }}'}]
    link_names: true
  msteamsv2_configs: [{webhook_url: 'SINK/teams'}]
  discord_configs: [{webhook_url: 'SINK/discord', username: gpuscope}]
  telegram_configs:
  - {bot_token: '1:a', chat_id: -12, message_thread_id: 3, disable_notifications: true}
  - {bot_token: '1:a', chat_id: 5, parse_mode: MarkdownV2}
  pagerduty_configs:
  - routing_key: key
    severity: '{{ .CommonLabels.severity }}'
    links: [{href: '{{ .ExternalURL }}', text: page}]
"""


@pytest.fixture
def sink() -> Iterator[Sink]:
    with running_sink() as running:
        yield running


def notification(value: str = "node-3", *, is_resolved: bool = False, count: int = 1) -> Notification:
    alerts = [
        StoredAlert(
            {
                "alertname": "GpuXidHardware", "node": value, "gpu": str(at), "severity": "critical",
                "user": value, "model": "NVIDIA H100", "job_id": "4711", "pod": value,
            },
            {
                "summary": f"XID 79 on {value}", "description": "Off the bus.", "next_step": "Drain, reboot.",
                "runbook_url": "https://wiki.example/xid",
            },
            AT - 90.5,
            AT if is_resolved else AT + 300,
            "http://prometheus.example/graph?g0.expr=x",
            fingerprint=f"{at:016x}",
        )
        for at in range(count)
    ]  # fmt: skip
    return Notification(
        receiver="all",
        group_key='{}:{alertname="GpuXidHardware"}',
        group_labels={"alertname": "GpuXidHardware"},
        alerts=alerts,
        reason=Reason.FIRST,
        external_url="http://gpuscope.example:9470",
        sent_at=AT,
        route_labels={},
    )


def load(tmp_path: Path, url: str, text: str = CONFIG) -> AlertingConfig:
    path = tmp_path / "alertmanager.yml"
    path.write_text(text.replace("SINK", url))
    return load_alerting(path)


def send_all(config: AlertingConfig, sent: Notification) -> None:
    for channel in build_channels(config)["all"]:
        channel.sender.send(sent, 10.0)


def received(sink: Sink) -> bytes:
    found: list[Any] = [[path, json.loads(body)] for _, path, body in sink.requests]
    return json.dumps(found, indent=1, ensure_ascii=False).encode()


TOLD = """
global: {slack_api_url: 'SINK/slack', telegram_api_url: 'SINK/telegram', pagerduty_url: 'SINK/pagerduty'}
route: {receiver: all}
receivers:
- name: all
  webhook_configs: [{url: 'SINK/all'}, {url: 'SINK/ten', max_alerts: 10}]
  slack_configs:
  - {channel: a}
  - {channel: a, text: '{{ range .Alerts }}{{ .Labels.gpu }}{{ end }}'}
  - {channel: a, text: 'GPUs are idle'}
  msteamsv2_configs: [{webhook_url: 'SINK/teams'}]
  discord_configs:
  - {webhook_url: 'SINK/discord'}
  - {webhook_url: 'SINK/discord', message: '{{ range .Alerts }}{{ .Labels }}{{ .Annotations }}{{ end }}'}
  telegram_configs: [{bot_token: '1:a', chat_id: -12}, {bot_token: '1:a', chat_id: 5, parse_mode: ''}]
  pagerduty_configs: [{routing_key: key}]
"""


@pytest.mark.parametrize(
    ("sent", "counts"),
    [
        (notification(count=3), [3, 3, 3, 3, 0, 3, 3, 3, 3, 3, 3]),
        (notification(count=30), [30, 10, 20, 30, 0, 20, 10, 0, 9, 10, 20]),
        (notification("n" * 900, count=30), [30, 10, 7, 30, 0, 5, 1, 0, 1, 1, 20]),
        (notification("n" * 2000, count=3), [3, 3, 0, 3, 0, 0, 0, 0, 0, 0, 0]),
    ],
    ids=["few", "many", "long", "too long for a line"],
)
def test_a_sender_says_which_alerts_it_has_told_in_full(
    sent: Notification, counts: list[int], sink: Sink, tmp_path: Path
) -> None:
    told = [
        channel.sender.send(sent, 10.0) for channel in build_channels(load(tmp_path, sink.url, TOLD))["all"]
    ]
    assert [len(one) for one in told] == counts
    in_order = [alert.fingerprint for alert in sent.alerts]
    assert all(one == set(in_order[: len(one)]) for one in told), "the first ones of the message"


def test_a_mail_that_a_recipient_did_not_get_has_told_nobody() -> None:
    to = "admins@example.org, {{ .CommonLabels.node }}@example.org"
    with running_smtp() as smtp:
        sender = mail_sender(replace(mail_config(smtp.port, require_tls=False), to=to))
        assert len(sender.send(notification("ann", count=30), 10.0)) == 20
        assert sender.send(notification("thief@evil.org, ann"), 10.0) == frozenset()
    with running_smtp(refuse="ann@example.org") as smtp:
        sender = mail_sender(replace(mail_config(smtp.port, require_tls=False), to=to))
        assert sender.send(notification("ann"), 10.0) == frozenset()


@pytest.mark.parametrize("case", ["firing", "resolved", "hostile", "many"])
def test_payloads(case: str, sink: Sink, tmp_path: Path) -> None:
    sent = {
        "firing": notification(),
        "resolved": notification(is_resolved=True),
        "hostile": notification(HOSTILE),
        "many": notification(count=30),
    }[case]
    sink.body = b"ok"
    send_all(load(tmp_path, sink.url), sent)
    assert all(headers["content-type"] == "application/json" for headers in sink.headers)
    check_golden(Path(f"notify/payloads_{case}.json"), received(sink))


def test_hostile_labels_mention_nobody_and_leave_no_markup(sink: Sink, tmp_path: Path) -> None:
    sink.body = b"ok"
    send_all(load(tmp_path, sink.url), notification(HOSTILE))
    bodies = {path: json.loads(body) for _, path, body in sink.requests}
    slack = [json.loads(body) for _, path, body in sink.requests if path == "/slack"]
    assert "<!" not in json.dumps(slack)
    assert "<@" not in json.dumps(slack)
    assert bodies["/discord"]["allowed_mentions"] == {"parse": []}
    assert "[x](" not in bodies["/discord"]["embeds"][0]["description"]
    assert "[x](" not in json.dumps(bodies["/teams"])
    telegram = next(json.loads(body) for _, path, body in sink.requests if path.startswith("/telegram"))
    assert "<script" not in telegram["text"]


def test_a_slack_app_uses_its_token_and_its_refusal_is_an_error(sink: Sink, tmp_path: Path) -> None:
    text = """
route: {receiver: all}
receivers:
- {name: all, slack_configs: [{app_token: xoxb-secret, app_url: 'SINK/api', channel: x}]}
"""
    config = load(tmp_path, sink.url, text)
    sink.body = b'{"ok": true}'
    send_all(config, notification())
    assert sink.headers[0]["authorization"] == "Bearer xoxb-secret"
    sink.body = b'{"ok": false, "error": "channel_not_found"}'
    with pytest.raises(SendError, match="channel_not_found") as caught:
        send_all(config, notification())
    assert not caught.value.may_retry


@pytest.mark.parametrize(
    ("status", "may_retry", "reason"),
    [(500, True, "serverError"), (429, False, "clientError"), (404, False, "clientError")],
)
def test_which_answers_are_worth_another_attempt(
    status: int, may_retry: bool, reason: str, sink: Sink, tmp_path: Path
) -> None:
    text = "route: {receiver: all}\nreceivers: [{name: all, webhook_configs: [{url: 'SINK/secret-path'}]}]\n"
    sink.answers = [status]
    sink.body = b"because"
    with pytest.raises(SendError) as caught:
        send_all(load(tmp_path, sink.url, text), notification())
    assert (caught.value.may_retry, caught.value.reason) == (may_retry, reason)
    assert "because" in str(caught.value)
    assert "secret-path" not in str(caught.value)


def test_an_unreachable_host_is_retried_and_its_url_not_told(tmp_path: Path) -> None:
    text = "route: {receiver: all}\nreceivers: [{name: all, webhook_configs: [{url: 'http://127.0.0.1:1/secret'}]}]\n"
    with pytest.raises(SendError) as caught:
        send_all(load(tmp_path, "", text), notification())
    assert caught.value.may_retry
    assert "secret" not in str(caught.value)


def test_ntfy(sink: Sink) -> None:
    config = NtfyConfig(url=SecretText(sink.url + "/"), topic=SecretText("gpus"), token=SecretText("tk_1"))
    NtfySender(config, load_messages()).send(notification(HOSTILE), 10.0)
    assert sink.headers[0]["authorization"] == "Bearer tk_1"
    check_golden(Path("notify/ntfy.json"), received(sink))


def mail_config(port: int, **more: Any) -> EmailConfig:
    return EmailConfig(
        to="Ops <ops@example.org>, b@example.org",
        sender="gpuscope@example.org",
        host="127.0.0.1",
        port=port,
        **more,
    )


def mail_sender(config: EmailConfig) -> EmailSender:
    return EmailSender(config, load_messages(), lambda domain: f"<1@{domain}>")


@pytest.mark.parametrize("case", ["firing", "hostile"])
def test_mail(case: str) -> None:
    with running_smtp() as sink:
        config = mail_config(
            sink.port,
            require_tls=False,
            has_threads=True,
            headers=(("Subject", "{{ .CommonLabels.node }}"), ("X-Node", "{{ .CommonLabels.node }}")),
            text="{{ .CommonLabels.node }}" if case == "hostile" else "",
        )
        mail_sender(config).send(notification(HOSTILE if case == "hostile" else "node-3"), 10.0)
    [mail] = sink.mails
    assert (mail.sender, mail.recipients) == ("gpuscope@example.org", ["ops@example.org", "b@example.org"])
    parsed = email.message_from_bytes(mail.content, policy=SMTP)
    assert "Bcc" not in parsed
    lines = [f"{name}: {value}" for name, value in parsed.items() if name != "Content-Type"]
    parts = [f"--- {part.get_content_type()}\n{part.get_content()}" for part in parsed.iter_parts()]
    check_golden(Path(f"notify/mail_{case}.txt"), "\n".join([*lines, *parts]).encode())
    assert "<script>" not in parts[1]


def test_mail_by_starttls_with_a_login(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    client = ssl.create_default_context(cafile=str(certificate.cert))
    with running_smtp(certificate.server_context(), logins="PLAIN") as sink:
        config = mail_config(sink.port, auth_username="me", auth_password=SecretText("pass word"), tls=client)
        mail_sender(replace(config, host="localhost")).send(notification(), 10.0)
    [mail] = sink.mails
    assert mail.is_encrypted
    assert mail.user == "me pass word"


MAIL_CONFIG = """
global:
  smtp_smarthost: 127.0.0.1:PORT
  smtp_from: gpuscope@example.org
  smtp_hello: monitor.example.org
  smtp_auth_username: me
  smtp_auth_password: pass word
  smtp_auth_identity: ops
  smtp_tls_config: {ca_file: cert.pem, server_name: localhost}
route: {receiver: all}
receivers: [{name: all, email_configs: [{to: ops@example.org}]}]
"""


def test_mail_with_every_global_option(tmp_path: Path) -> None:
    """The certificate is valid for `server_name`, not for the address of the smarthost."""
    certificate = make_certificate(tmp_path)
    with running_smtp(certificate.server_context(), logins="PLAIN") as sink:
        text = MAIL_CONFIG.replace("PORT", str(sink.port))
        send_all(load(tmp_path, "", text), notification())
        with pytest.raises(SendError, match="certificate"):
            send_all(load(tmp_path, "", text.replace(", server_name: localhost", "")), notification())
    [mail] = sink.mails
    assert (mail.is_encrypted, mail.user, mail.hello) == (True, "ops me pass word", "monitor.example.org")


@pytest.mark.parametrize(
    ("port", "more", "is_implicit"),
    [(465, "", True), (587, "", False), (587, "force_implicit_tls: true", True),
     (465, "force_implicit_tls: false", False)],
)  # fmt: skip
def test_tls_from_the_first_byte_on_port_465_unless_told(
    port: int, more: str, is_implicit: bool, tmp_path: Path
) -> None:
    text = MAIL_CONFIG.replace("PORT", str(port)).replace("ops@example.org}", f"ops@example.org, {more}}}")
    make_certificate(tmp_path)
    [config] = load(tmp_path, "", text).receivers["all"].channels
    assert isinstance(config, EmailConfig)
    assert config.implicit_tls is is_implicit


def test_mail_by_implicit_tls(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with running_smtp(certificate.server_context(), is_implicit=True) as sink:
        text = MAIL_CONFIG.replace("PORT", str(sink.port)).replace("g}]", "g, force_implicit_tls: true}]")
        send_all(load(tmp_path, "", text), notification())
    assert [mail.is_encrypted for mail in sink.mails] == [True]


@pytest.mark.parametrize(
    ("offered", "secrets", "used", "user"),
    [
        ("PLAIN CRAM-MD5", {"auth_secret": "s"}, "CRAM-MD5", "me " + hmac.digest(b"s", CHALLENGE, "md5").hex()),
        ("CRAM-MD5 PLAIN", {"auth_password": "p"}, "PLAIN", "me p"),
        ("PLAIN", {"auth_secret": "s", "auth_password": "p"}, "PLAIN", "me p"),
        ("CRAM-MD5", {"auth_password": "p"}, "CRAM-MD5", "me " + hmac.digest(b"p", CHALLENGE, "md5").hex()),
    ],
)  # fmt: skip
def test_a_secret_is_for_cram_md5_and_a_password_for_the_rest(
    offered: str, secrets: dict[str, str], used: str, user: str
) -> None:
    values: dict[str, Any] = {name: SecretText(value) for name, value in secrets.items()}
    with running_smtp(logins=offered) as sink:
        config = mail_config(sink.port, require_tls=False, auth_username="me", **values)
        mail_sender(config).send(notification(), 10.0)
    [mail] = sink.mails
    assert (mail.logins, mail.user) == ([used], user)


def test_headers_may_name_another_sender_and_recipient_than_the_envelope() -> None:
    headers = (("From", "GPUs {{ .Status }} <gpus@example.org>"), ("To", "{{ .CommonLabels.node }} <x@y.z>"))
    for value, shown in (("Größe", "Größe <x@y.z>"), ("a\r\nBcc: evil@example.org\r\n", None)):
        mail, sender, recipients, _ = mail_sender(mail_config(1, headers=headers)).message(notification(value))
        assert (sender, recipients) == ("gpuscope@example.org", ["ops@example.org", "b@example.org"])
        parsed = email.message_from_bytes(bytes(mail), policy=SMTP)
        assert parsed["From"] == "GPUs firing <gpus@example.org>"
        assert shown is None or parsed["To"] == shown
        assert len(parsed.get_all("To", ())) == len(parsed.get_all("From", ())) == 1
        assert "Bcc" not in parsed


@pytest.mark.parametrize(
    "value",
    [
        "thief@evil.org, ann",
        "thief@evil.org; ann",
        "thief@evil.org,",
        "x <thief@evil.org> ",
        "thief@evil.org(",
        "thief@evil.org <ann",
        '"x" <thief@evil.org>, a',
        "thief@evil.org\n, ann",
        "thief@evil.org ann",
        "thief@evil.org",
        "a:thief@evil.org;",
    ],
)
def test_a_label_adds_no_recipient(value: str, caplog: pytest.LogCaptureFixture) -> None:
    to = "admins@example.org, {{ .CommonLabels.node }}@example.org"
    sender = mail_sender(replace(mail_config(1), to=to))
    assert sender.message(notification("ann"))[2] == ["admins@example.org", "ann@example.org"]
    assert sender.message(notification(value))[2] == ["admins@example.org"]
    assert "mail: left out a recipient: to: " in caplog.text
    alone = mail_sender(replace(mail_config(1), to="{{ .CommonLabels.node }}@example.org"))
    with pytest.raises(SendError, match="to: "):
        alone.message(notification(value))
    reply = mail_sender(mail_config(1, headers=(("Reply-To", "{{ .CommonLabels.node }}@example.org"),)))
    with pytest.raises(SendError, match="Reply-To: "):
        reply.message(notification(value))


def test_the_configuration_may_list_several_recipients() -> None:
    def recipients(to: str, value: str) -> list[str]:
        return mail_sender(replace(mail_config(1), to=to)).message(notification(value))[2]

    whole = "{{ .CommonLabels.node }}"
    assert recipients(whole, "Ann <ann@example.org>") == ["ann@example.org"]
    with pytest.raises(SendError, match="separate addresses"):
        recipients(whole, "ann@example.org, thief@evil.org")
    each = "{{ range .Alerts }}{{ .Labels.node }}@example.org, {{ end }}ops@example.org"
    assert recipients(each, "ann")[-1] == "ops@example.org"
    assert set(recipients(each, "ann")) == {"ann@example.org", "ops@example.org"}
    with pytest.raises(SendError, match="separate addresses"):
        recipients(each, "thief@evil.org, ann")
    assert recipients('{{ if eq .Status "a,b" }}x{{ else }}ann{{ end }}@example.org', "n") == [
        "ann@example.org"
    ]


@pytest.mark.parametrize("value", ["127.0.0.1:1/#", "evil@127.0.0.1:1/?", "evil.org/", "127.0.0.1:1\\"])
def test_a_label_does_not_change_the_host_of_a_webhook(value: str) -> None:
    config = WebhookConfig(
        url=SecretText("http://{{ .CommonLabels.node }}.hooks.invalid/{{ .CommonLabels.node }}")
    )
    sender = WebhookSender(config, load_messages())
    with pytest.raises(SendError, match="changes its host"):
        sender.send(notification(value), 1.0)


def test_a_label_may_be_a_part_of_a_webhooks_path_or_its_whole_url(sink: Sink) -> None:
    for url, value in (
        (sink.url + "/team/{{ .CommonLabels.node }}", "ml/a"),
        ("{{ .CommonLabels.node }}", sink.url),
    ):
        config = WebhookConfig(url=SecretText(url))
        WebhookSender(config, load_messages()).send(notification(value), 10.0)
    assert len(sink.requests) == 2


def test_mail_without_tls_is_not_sent_unless_allowed() -> None:
    with running_smtp() as sink, pytest.raises(SendError, match="STARTTLS"):
        mail_sender(mail_config(sink.port)).send(notification(), 10.0)
    assert sink.mails == []


def test_a_mail_server_that_refuses_is_asked_again() -> None:
    with running_smtp(refuse="DATA") as sink, pytest.raises(SendError, match="451 try again later") as caught:
        mail_sender(mail_config(sink.port, require_tls=False)).send(notification(), 10.0)
    assert caught.value.may_retry


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"220-welcome\r\n" * 100_000, "more than 65536 bytes"),
        (b"2" * 1_000_000, "Line too long|more than 65536 bytes"),
    ],
)
def test_replies_of_a_mail_server_without_end_are_not_kept(reply: bytes, error: str) -> None:
    with serving_once(reply) as port, pytest.raises(SendError, match=error):
        mail_sender(mail_config(port, require_tls=False)).send(notification(), 10.0)


def test_a_mail_server_that_sends_a_byte_at_a_time_meets_one_time_limit() -> None:
    """smtplib alone would wait anew for each byte."""
    with serving_once(b"2" * 200, pause_seconds=0.05) as port, pytest.raises(SendError, match="timed out"):
        mail_sender(mail_config(port, require_tls=False)).send(notification(), 0.3)


def test_addresses_come_from_templates_but_stay_addresses() -> None:
    config = replace(mail_config(1), to="{{ .CommonLabels.node }}@example.org")
    with pytest.raises(SendError, match="not a mail address"):
        mail_sender(config).message(notification(HOSTILE))


def test_a_secret_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secret = SecretText(path=path)
    with pytest.raises(SendError, match="No such file"):
        secret.reveal()
    path.write_text("one\n")
    assert secret.reveal() == "one"
    assert "one" not in f"{secret} {secret!r}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_apprise_sends_title_and_body(sink: Sink) -> None:
    pytest.importorskip("apprise")
    url = f"json://{sink.url.removeprefix('http://')}/path"
    sender = AppriseSender(AppriseConfig(url=SecretText(url), scheme="json"), load_messages())
    sender.send(notification(), 10.0)
    [(_, _, body)] = sink.requests
    document = json.loads(body)
    assert document["title"].startswith("[FIRING:1] GpuXidHardware")
    assert "Next step: Drain, reboot." in document["message"]
    assert document["type"] == "failure"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_apprise_splits_a_long_message_unless_the_url_says_otherwise(sink: Sink) -> None:
    pytest.importorskip("apprise")
    long = notification("x" * 2_000, count=20)
    for query, is_split in (("", True), ("?overflow=truncate", False)):
        before = len(sink.requests)
        url = f"json://{sink.url.removeprefix('http://')}/path{query}"
        AppriseSender(apprise_config(url), load_messages()).send(long, 60.0)
        assert (len(sink.requests) - before > 1) == is_split, query


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_apprise_has_the_time_that_is_left(sink: Sink) -> None:
    pytest.importorskip("apprise")
    sink.delay.clear()
    sender = AppriseSender(
        apprise_config(f"json://{sink.url.removeprefix('http://')}/path?rto=200"),
        load_messages(),
    )
    with pytest.raises(SendError, match=r"json://…: no answer within 0.3 s") as error:
        sender.send(notification(), 0.3)
    assert error.value.may_retry
    sink.delay.set()


def apprise_config(url: str) -> AppriseConfig:
    return AppriseConfig(url=SecretText(url), scheme=url.partition(":")[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_failure_of_apprise_has_a_reason_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("apprise")
    messages = load_messages()
    with pytest.raises(SendError, match=r"could not send to json://…: .*onnection error") as refused:
        AppriseSender(apprise_config("json://user:s3cret@127.0.0.1:1/t0ken"), messages).send(
            notification(), 10.0
        )
    with pytest.raises(SendError, match="neither gpuscope nor apprise") as unknown:
        AppriseSender(apprise_config("htp://s3cret"), messages).send(notification(), 10.0)
    assert not logging.getLogger("apprise").propagate, "its messages repeat URLs"
    logged = " ".join(record.getMessage() for record in caplog.records if record.name != "apprise")
    for text in (str(refused.value), str(unknown.value), logged):
        assert "s3cret" not in text
        assert "t0ken" not in text


def test_urls_that_apprise_does_not_know_are_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("apprise")
    assert main(["notify", "test", "htp://s3cret/x"]) == 2
    error = capsys.readouterr().err
    with pytest.raises(UsageError) as caught:
        read_alerting(load_settings({"notify": "htp://s3cret/x"}, {}))
    for text in (error, str(caught.value)):
        assert "htp://…: neither gpuscope nor apprise has a channel for htp:// URLs" in text
        assert "s3cret" not in text


def test_apprise_is_needed_at_the_start_if_a_url_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"--notify matrix://…: apprise is not installed.*pip install"):
        check_apprise_urls([apprise_config("matrix://s3cret@host")])


def test_without_apprise_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    config = AppriseConfig(url=SecretText("matrix://s3cret@host"), scheme="matrix")
    with pytest.raises(SendError, match=r"pip install 'gpuscope\[apprise\]'") as caught:
        AppriseSender(config, load_messages()).send(notification(), 10.0)
    assert "s3cret" not in str(caught.value)


MAX_MESSAGE_BYTES = 64 << 10


@pytest.mark.slow
def test_ten_thousand_alerts_are_one_message_of_readable_size(sink: Sink, tmp_path: Path) -> None:
    """A webhook has all of them; a message for people lists some and counts the rest."""
    sink.body = b"ok"
    sent = notification(count=10_000)
    send_all(load(tmp_path, sink.url), sent)
    with running_smtp() as smtp:
        mail_sender(mail_config(smtp.port, require_tls=False)).send(sent, 30.0)
    bodies = {path: body for _, path, body in sink.requests}
    assert len(json.loads(bodies.pop("/webhook"))["alerts"]) == 10_000
    for path, body in bodies.items():
        assert len(body) < MAX_MESSAGE_BYTES, path
    [mail] = smtp.mails
    assert len(mail.content) < MAX_MESSAGE_BYTES
    assert b"9980" in mail.content
