"""What each kind of channel requests: a real Alertmanager and gpuscope send the same for the same alerts.

Every text is given in the file, because default messages differ on purpose. The group that gpuscope sends is
read from the webhook that Alertmanager sends beside each channel.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.time_text import parse_rfc3339, to_rfc3339
from gpuscope.judge.notify.alert_store import StoredAlert
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.channel import Channel
from gpuscope.judge.notify.channels import build_receiver
from gpuscope.judge.notify.notification import Notification, Reason
from tests.engines import running_alertmanager
from tests.notify.kind_sink import running_kind_sink
from tests.notify.timeline import call

TEXT = "'{{ range .Alerts }}{{ .Status }} {{ .Labels.gpu }} {{ .Annotations.summary }} {{ end }}'"
LONG = "'{{ range .Alerts }}{{ .Status }}{{ end }}" + "é<&>" * 8000 + "'"

KINDS = {
    "opsgenie": f"""
  - {{api_key: 'key-{{{{ .Status }}}}', api_url: 'SINK/plain', message: m, description: {TEXT}, source: s}}
  - api_key: key
    api_url: 'SINK/full/?x=1'
    message: {LONG}
    description: {TEXT}
    source: '{{{{ .ExternalURL }}}}'
    details: {{node: 'own {{{{ .CommonLabels.node }}}}', more: b}}
    responders:
    - {{type: teams, name: 'a,{{{{ .CommonLabels.node }}}},,b'}}
    - {{type: Team, id: i}}
    - {{type: '{{{{ .CommonLabels.nope }}}}', username: '{{{{ .CommonLabels.nope }}}}'}}
    tags: ' a,,b '
    actions: ','
    note: '{{{{ .Status }}}}'
    priority: P1
    entity: e
    update_alerts: true
    http_config: {{authorization: {{credentials: other}}}}
""",
    "webex": f"""
  - {{api_url: 'SINK/v1', room_id: 'r {{{{ .Status }}}}', message: {TEXT},
     http_config: {{authorization: {{credentials: t}}}}}}
  - {{api_url: 'SINK/v1', room_id: r, message: {LONG}, http_config: {{bearer_token: t}}}}
""",
    "pushover": f"""
  - {{user_key: u, token: '{{{{ .Status }}}}', title: t, message: {TEXT}, url: 'http://x/?a=b c', PROXY}}
  - {{user_key: u, token: t, title: {LONG}, message: {LONG}, url: {LONG}, url_title: a, device: d, sound: s,
     priority: '1', retry: 1m30s, expire: 1.5h, ttl: 90s, monospace: true, PROXY}}
  - {{user_key: u, token: t, title: t, url: x, html: true, PROXY, message: '<b>{{{{ .CommonLabels.odd }}}}'}}
  - {{user_key: u, token: t, title: t, message: ' ', url: x, ttl: 500ms, PROXY}}
""",
    "victorops": f"""
  - api_key: k
    api_url: 'SINK/alert'
    routing_key: 'team {{{{ .CommonLabels.node }}}}?#/é'
    state_message: {TEXT}
    entity_display_name: '{{{{ .CommonLabels.node }}}}'
    monitoring_tool: t
    custom_fields: {{a: '{{{{ .Status }}}}', b: ''}}
  - {{api_key: k, api_url: 'SINK/alert/', routing_key: r, message_type: '{{{{ .CommonLabels.severity }}}}',
     state_message: {LONG}, entity_display_name: e, monitoring_tool: t}}
  - {{api_key: k, api_url: 'SINK/alert/', routing_key: r, message_type: WARNING, state_message: '',
     entity_display_name: e, monitoring_tool: t}}
""",
    "mattermost": f"""
  - {{webhook_url: 'SINK/hooks/1', text: {TEXT}, username: u, color: c, title: t, title_link: l, fallback: ''}}
  - webhook_url: 'SINK/hooks/2'
    channel: '#{{{{ .CommonLabels.node }}}}'
    username: ''
    icon_url: i
    icon_emoji: e
    type: custom_x
    text: {LONG}
    title: '{{{{ .Status }}}}'
    title_link: 'http://x/?a=b&c'
    color: '{{{{ template "mattermost.default.color" . }}}}'
    fallback: f
    pretext: p
    author_name: a
    author_link: b
    author_icon: c
    footer: d
    footer_icon: e
    thumb_url: f
    image_url: g
    fields: [{{title: t, value: '{{{{ .Status }}}}'}}, {{title: t, value: v, short: false}}]
    props: {{card: '{{{{ .CommonLabels.node }}}}'}}
    priority: {{priority: URGENT, requested_ack: true, persistent_notifications: true}}
  - webhook_url: 'SINK/hooks/3'
    username: u
    text: {LONG}
    attachments:
    - {{text: {TEXT}, title: t, fields: [{{title: t, value: v, short: true}}]}}
    - {{color: c, pretext: '{{{{ .Status }}}}', fallback: f}}
    priority: {{priority: important, requested_ack: true, persistent_notifications: true}}
  - {{webhook_url: 'SINK/hooks/4', text: {TEXT}, username: u, title: t, title_link: l, fallback: f, props: {{}},
     attachments: [], priority: {{priority: nope, requested_ack: true, persistent_notifications: true}}}}
""",
    "rocketchat": f"""
  - {{api_url: 'SINK', token: t, token_id: i, text: {TEXT}, title: t, title_link: l, send_resolved: true}}
  - send_resolved: true
    api_url: 'SINK/chat/'
    token: t
    token_id: i
    channel: '#{{{{ .CommonLabels.node }}}}'
    text: {LONG}
    title: {LONG}
    title_link: 'http://x/?a=b&c'
    emoji: ':fire:'
    icon_url: i
    image_url: g
    thumb_url: h
    short_fields: true
    link_names: true
    fields: [{{title: t, value: '{{{{ .Status }}}}'}}, {{title: t, short: false}}]
    actions: [{{type: x, text: '{{{{ .Status }}}}', url: u, msg: m, imageurl: i, iswebview: true}}, {{}}]
""",
    "msteams": f"""
  - {{webhook_url: 'SINK/1', title: t, summary: '{{{{ .CommonLabels.node }}}}', text: {TEXT}}}
  - {{webhook_url: 'SINK/2', title: '{{{{ .Status }}}}', summary: '', text: ''}}
""",
    "wechat": f"""
  - {{api_url: 'SINK/1', api_secret: '{{{{ .Receiver }}}} s', corp_id: c, message: {TEXT}, send_resolved: true}}
  - {{api_url: 'SINK/2/', api_secret: s, corp_id: c, message: {TEXT}, to_user: '{{{{ .CommonLabels.node }}}}',
     to_party: p, to_tag: t, agent_id: a, message_type: markdown, send_resolved: true}}
""",
    "incidentio": """
  - {url: 'SINK/1', alert_source_token: t}
  - {url: 'SINK/2', alert_source_token: t, max_alerts: 1, timeout: 5s}
  - {url: 'SINK/3', http_config: {authorization: {credentials: c}}}
""",
    "jira": f"""
  - {{api_url: 'SINK/new/2', project: P, issue_type: Bug, summary: {LONG}, description: {TEXT},
     labels: [z, '{{{{ .Status }}}}'],
     wont_fix_resolution: 'Won"t', reopen_transition: Reopen, reopen_duration: 90m, api_type: datacenter}}
  - {{api_url: 'SINK/old/rest/api/2/', project: 'P {{{{ .CommonLabels.node }}}}',
     issue_type: '{{{{ .Status }}}}', summary: s, description: {LONG},
     resolve_transition: Done, priority: '', api_type: cloud}}
  - api_url: 'SINK/no-update/rest/api/2'
    project: P
    issue_type: Bug
    summary: {{template: '{{{{ .Status }}}}', enable_update: false}}
    description: {{template: {TEXT}, enable_update: false}}
    fields: {{customfield_1: {{value: '{{{{ .CommonLabels.node }}}}'}}, customfield_2: [a, 5], other: '7'}}
  - {{api_url: 'SINK/rest/api/3', project: P, issue_type: Bug, summary: s, priority: P1,
     description: '{{"type": "doc"}}'}}
  - {{api_url: 'SINK/rest/api/3', project: P, issue_type: Bug, summary: s, description: ''}}
""",
    "sns": f"""
  - {{api_url: 'SINK/1', topic_arn: 'arn:{{{{ .Status }}}}', subject: 's é', message: {TEXT}, KEY}}
  - {{api_url: 'SINK/2/', topic_arn: 'arn:x.fifo', subject: '', message: {TEXT}, attributes: {{a: b}}, KEY}}
  - {{api_url: 'SINK/3', phone_number: '+49 1', message: {LONG}, subject: s,
     attributes: {{'{{{{ .Status }}}}': '{{{{ .CommonLabels.node }}}}'}}, KEY}}
  - {{api_url: 'SINK/4', target_arn: t, message: {TEXT}, subject: s, KEY}}
""",
}


def config_text(kind: str, url: str) -> str:
    """A service whose URL is fixed is reached through a proxy, which is us."""
    proxy = f"http_config: {{proxy_url: '{url}', tls_config: {{insecure_skip_verify: true}}}}"
    entries = KINDS[kind].replace("SINK", url).replace("PROXY", proxy)
    entries = entries.replace("KEY", "sigv4: {region: us-east-1, access_key: AKIDEXAMPLE, secret_key: s}")
    return f"""
route: {{receiver: all, group_by: [alertname], group_wait: 500ms, group_interval: 1s, repeat_interval: 1h}}
receivers:
- name: all
  webhook_configs: [{{url: '{url}/webhook'}}]
  {kind}_configs:{entries}"""


def alerts(now: float, ends_at: float | None) -> list[dict[str, Any]]:
    return [
        {
            "labels": {
                "alertname": "GpuHot", "node": "n1", "gpu": gpu, "severity": "warning", "odd": "a<b>&'c'"
            },
            "annotations": {"summary": f"GPU {gpu} is hot, é"},
            "startsAt": to_rfc3339(now),
            **({} if ends_at is None else {"endsAt": to_rfc3339(ends_at)}),
        }
        for gpu in ("0", "1")
    ]  # fmt: skip


def to_notification(group: dict[str, Any], sent_at: float) -> Notification:
    return Notification(
        receiver=group["receiver"],
        group_key=group["groupKey"],
        group_labels=group["groupLabels"],
        alerts=[
            StoredAlert(
                alert["labels"],
                alert["annotations"],
                parse_rfc3339(alert["startsAt"]),
                parse_rfc3339(alert["endsAt"]) if alert["status"] == "resolved" else sent_at + 300,
                alert["generatorURL"],
                fingerprint=alert["fingerprint"],
            )
            for alert in group["alerts"]
        ],
        reason=Reason(group["notification_reason"]),
        external_url=group["externalURL"],
        sent_at=sent_at,
        route_labels={},
    )


@pytest.mark.engine("alertmanager")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_sends_what_alertmanager_sends(kind: str, tmp_path: Path) -> None:
    with running_kind_sink(kind, tmp_path) as theirs, running_kind_sink(kind, tmp_path) as ours:
        channels = own_channels(kind, ours.url, tmp_path)
        with running_alertmanager(config_text(kind, theirs.url)) as base:
            started = (
                time.time()
            )  # not before: Alertmanager sends an alert at once that is older than group_wait
            for phase, status in enumerate(("firing", "resolved"), 1):
                posted = alerts(started, None if status == "firing" else time.time())
                call("POST", f"{base}/api/v2/alerts", posted)
                group = to_notification(theirs.wait_for_group(phase), time.time())
                assert (group.status, len(group.alerts)) == (status, 2)
                for channel in channels:
                    channel.sender.send(group, 10.0)
                sent = ours.taken(len(channels))
                assert sent == theirs.taken(len(sent))


def own_channels(kind: str, url: str, tmp_path: Path) -> list[Channel]:
    path = tmp_path / "alertmanager.yml"
    path.write_text(config_text(kind, url))
    config = load_alerting(path)
    configs = [entry for entry in config.receivers["all"].channels if entry.kind == kind]
    return build_receiver("all", configs, config.messages)
