"""An `alertmanager.yml` is taken as it is, or refused with file, line, column and reason."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.judge.notify.alerting_config import AlertingConfig, build_channels, load_alerting
from gpuscope.judge.notify.channel import SendError
from gpuscope.judge.notify.channels import RefusedChannel, parse_notify_url
from gpuscope.judge.notify.default_alerting import default_alerting
from tests.engines import engine
from tests.examples import examples

EVERYTHING = """
global:
  resolve_timeout: 10m
  smtp_from: a@example.org
  smtp_smarthost: 'mail.example.org:587'
  smtp_auth_username: me
  smtp_auth_password: s3cret-smtp
  slack_api_url: https://hooks.slack.com/services/s3cret-slack
  http_config: {follow_redirects: true, authorization: {credentials: s3cret-http}}
templates: ['*.tmpl']
route:
  receiver: all
  group_by: ['...']
  routes:
  - {receiver: other, matchers: [severity=~"a|b", '{x!="y"}'], continue: true, group_wait: 0s,
     mute_time_intervals: [night], active_time_intervals: [day]}
time_intervals:
- name: night
  time_intervals: [{times: [{start_time: '00:00', end_time: '06:00'}], location: Europe/Berlin}]
- name: day
  time_intervals: [{weekdays: ['monday:friday'], months: ['1:12'], years: ['2026'], days_of_month: ['1:-1']}]
inhibit_rules:
- {source_matchers: [a=b], target_matchers: [c=d], equal: [node]}
- {source_match: {a: b}, target_match_re: {c: d.*}}
receivers:
- name: other
- name: all
  webhook_configs: [{url: 'https://x.example/s3cret-hook', max_alerts: 3, timeout: 5s}]
  email_configs:
  - {to: b@example.org, headers: {subject: '{{ .CommonLabels.alertname }}'}, html: '{{ template "own" . }}',
     threading: {enabled: true, thread_by_date: daily}}
  slack_configs: [{channel: c}]
  msteamsv2_configs: [{webhook_url: 'https://x.example/s3cret-teams'}]
  discord_configs: [{webhook_url: 'https://x.example/s3cret-discord'}]
  telegram_configs: [{bot_token: s3cret-bot, chat_id: 1}]
  pagerduty_configs: [{routing_key: s3cret-pager, details: {a: '{{ .Status }}'}}]
"""


def load(tmp_path: Path, text: str) -> AlertingConfig:
    path = tmp_path / "alertmanager.yml"
    path.write_text(text)
    return load_alerting(path)


def test_every_key_is_read_and_no_secret_is_shown(tmp_path: Path) -> None:
    (tmp_path / "own.tmpl").write_text('{{ define "own" }}<b>{{ .Status }}</b>{{ end }}')
    config = load(tmp_path, EVERYTHING)
    assert [one.kind for one in config.receivers["all"].channels] == [
        "webhook", "email", "slack", "msteamsv2", "discord", "telegram", "pagerduty",
    ]  # fmt: skip
    assert config.route.groups_by_all
    assert config.resolve_timeout == 600
    assert config.route.routes[0].key == '{}/{severity=~"a|b",x!="y"}'
    assert "s3cret" not in repr(config)
    assert "s3cret" not in config.original
    assert "<secret>" in config.original


def test_what_we_show_is_a_file_that_amtool_accepts(tmp_path: Path) -> None:
    (tmp_path / "own.tmpl").write_text('{{ define "own" }}<b>{{ .Status }}</b>{{ end }}')
    texts = [load(tmp_path, EVERYTHING).original]
    texts.append(default_alerting(["https://x.example", "ntfy://ntfy.sh/x"], "https://hc.example/1").original)
    for at, text in enumerate(texts):
        path = tmp_path / f"shown{at}.yml"
        path.write_text(text)
        answer = subprocess.run(
            [engine("amtool"), "check-config", path], capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        load_alerting(path)


BASE = "route: {receiver: r}\nreceivers:\n- name: r\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("receivers: [{name: r}]\n", "route: is missing"),
        ("route: {receiver: x}\nreceivers: [{name: r}]\n", "there is no receiver 'x'"),
        (
            "route: {receiver: r, matchers: [a=b]}\nreceivers: [{name: r}]\n",
            "the first route takes every alert",
        ),
        ("route: {group_by: [a]}\nreceivers: [{name: r}]\n", "receiver: is missing"),
        (BASE + "- name: r\n", "two receivers 'r'"),
        (BASE + "  sns_configs: [{subject: x}]\n", "give topic_arn, phone_number or target_arn"),
        (BASE + "  gpuscope_configs: [{}]\n", "gpuscope_configs: unknown key"),
        (BASE + "  webhook_configs: [{url: 'ftp://x'}]\n", "must be an http:// or https:// URL"),
        (BASE + "  webhook_configs: [{max_alerts: 1}]\n", "give url or url_file"),
        (BASE + "  webhook_configs: [{ulr: 'http://x'}]\n", "give url"),
        (BASE + "  webhook_configs: [{url: 'http://x', sendresolved: true}]\n", "did you mean send_resolved?"),
        (
            BASE + "  webhook_configs: [{url: 'http://x', http_config: {proxy_url: 'ftp://p'}}]\n",
            "proxy_url: only http:// and socks5:// proxies are supported, not ftp://",
        ),
        (BASE + "  email_configs: [{to: a@b}]\n", "from: is missing"),
        (BASE + "  slack_configs: [{channel: x}]\n", "api_url: is missing"),
        (BASE + "  slack_configs: [{api_url: 'http://x', title: '{{ .Nope'}]\n", "unclosed action"),
        (
            BASE + "  slack_configs: [{api_url: 'http://x', title: '{{ nope }}'}]\n",
            'function "nope" not defined',
        ),
        (BASE + "  telegram_configs: [{bot_token: x, chat_id: y}]\n", "is not the number of a chat"),
        (BASE + "nonsense: 1\n", "nonsense: unknown key"),
        ("route: {receiver: r, group_by: [a, a]}\nreceivers: [{name: r}]\n", "given twice"),
        ("route: {receiver: r, group_by: [a, '...']}\nreceivers: [{name: r}]\n", "stands alone"),
        ("route: {receiver: r, group_interval: 0s}\nreceivers: [{name: r}]\n", "cannot be zero"),
        ("route: {receiver: r, group_wait: soon}\nreceivers: [{name: r}]\n", "is not a duration"),
        ("route: {receiver: r, routes: [{matchers: ['a=~(']}]}\nreceivers: [{name: r}]\n", "a=~("),
        (
            "route: {receiver: r, routes: [{mute_time_intervals: [x]}]}\nreceivers: [{name: r}]\n",
            "no time interval 'x'",
        ),
        (BASE + "time_intervals: [{name: t, time_intervals: [{weekdays: [x]}]}]\n", "'x' is not a weekday"),
        (
            BASE + "templates: ['missing-*.tmpl']\ninhibit_rules: [{source_match: {'a b': c}}]\n",
            "not the name of a label",
        ),
    ],
)
def test_mistakes_are_named(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "alertmanager.yml"))
    assert reason in message
    if "is missing" not in reason and "give url" not in reason:
        assert "(line " in message
        assert "column " in message


@pytest.mark.parametrize(
    ("text", "reason", "refused"),
    [
        (
            BASE + "  slack_configs: [{api_url: 'http://x', update_message: true}]\n"
            "  webhook_configs: [{url: 'http://x'}]\n",
            "slack_configs[0]: update_message: is not supported",
            ["r/slack[0]"],
        ),
        (
            BASE + "  webhook_configs:\n  - {url: 'http://x', http_config: {proxy_url: 'https://p'}}\n"
            "  - {url: 'http://x'}\n",
            "proxy_url: only http:// and socks5:// proxies are supported",
            ["r/webhook[0]"],
        ),
        (
            "global: {http_config: {proxy_url: 'https://p'}, smtp_from: a@b, smtp_smarthost: 'm:25'}\n" + BASE
            + "  webhook_configs: [{url: 'http://x'}, {url: 'http://x', http_config: {}}]\n"
            "  email_configs: [{to: a@b}]\n",
            "proxy_url: only http:// and socks5:// proxies are supported",
            ["r/webhook[0]"],
        ),
    ],
    ids=["a key", "a proxy", "a proxy of all"],
)  # fmt: skip
def test_what_cannot_be_done_here_refuses_that_entry_and_not_the_file(
    text: str, reason: str, refused: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    channels = build_channels(load(tmp_path, text))["r"]
    failing = [channel for channel in channels if isinstance(channel.sender, RefusedChannel)]
    assert [str(channel.key) for channel in failing] == refused
    assert len(channels) > len(failing)
    for channel in failing:
        with pytest.raises(SendError) as caught:
            channel.sender.send(None, 1.0)  # type: ignore[arg-type]
        assert reason in str(caught.value)
        assert not caught.value.may_retry
    assert reason in caplog.text


def test_a_broken_template_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.tmpl").write_text("x\n{{ define }}")
    with pytest.raises(UsageError, match=r"own\.tmpl.*:2"):
        load(tmp_path, "templates: ['*.tmpl']\n" + BASE)


KEYS = st.sampled_from(
    [
        "route",
        "receivers",
        "global",
        "receiver",
        "routes",
        "name",
        "matchers",
        "group_by",
        "url",
        "webhook_configs",
        "time_intervals",
    ]
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.integers(), st.booleans(), st.sampled_from(["r", "a=b", "1m", "...", "{{", "http://x"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=15,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150))
@given(VALUES)
def test_any_document_is_a_configuration_or_a_usage_error(tmp_path: Path, document: object) -> None:
    with suppress(UsageError):
        load(tmp_path, json.dumps(document))


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://x.example/hook", "webhook"),
        ("mailto://me%40x:p@smtp.example.org:465?to=a@example.org,b@example.org", "email"),
        ("slack://T0/B0/s3cret", "slack"),
        ("slack://hooks.slack.com/services/T0/B0/s3cret", "slack"),
        ("ntfy://ntfy.sh/s3cret", "ntfy"),
        ("ntfy+http://u:s3cret@localhost:80/t", "ntfy"),
        ("discord://1/s3cret", "discord"),
        ("telegram://1:s3cret/-5", "telegram"),
        ("pagerduty://s3cret", "pagerduty"),
        ("msteams+https://x.example/s3cret", "msteamsv2"),
        ("matrix://s3cret@x", "apprise"),
    ],
)
def test_notify_urls(url: str, kind: str) -> None:
    found = parse_notify_url(url)
    assert found.kind == kind
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "nothing",
        "https://",
        "slack://s3cret",
        "mailto://smtp?cc=s3cret",
        "ntfy://s3cret",
        "http://x:s3cret/",
        "telegram://s3cret",
    ],
)
def test_wrong_urls_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_notify_url(url)
    assert "s3cret" not in str(caught.value)


def test_the_shipped_file_is_valid_here_too() -> None:
    config = load_alerting(Path(__file__).parents[2] / "deploy/prometheus/alertmanager.yml")
    assert len(config.inhibit_rules) == len(default_alerting().inhibit_rules) - 1
    assert [one.group_wait for one in default_alerting().route.routes] == [0.0, 600.0]
