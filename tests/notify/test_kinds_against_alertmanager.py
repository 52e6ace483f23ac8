"""What each kind of channel requests: a real Alertmanager and gpuscope send the same for the same alerts.

Every text is given in the file, because default messages differ on purpose. The group that gpuscope sends is
read from the webhook that Alertmanager sends beside each channel.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from gpuscope.base.time_text import parse_rfc3339, to_rfc3339
from gpuscope.judge.notify.alert_store import StoredAlert
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.channel import Channel
from gpuscope.judge.notify.channels import build_receiver
from gpuscope.judge.notify.channels.pushover import PushoverConfig
from gpuscope.judge.notify.notification import Notification, Reason
from tests.engines import running_alertmanager
from tests.local_server import serving_in_thread
from tests.notify.timeline import call
from tests.server.certificates import make_certificate
from tests.waiting import PATIENCE_SECONDS

COMPARED_HEADERS = ("content-type", "authorization", "x-auth-token", "x-user-id", "accept-language")
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
}
ANSWERS: dict[str, Callable[[str], object]] = {}
"""What the service answers to a request for a path, if it is looked at."""


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...]
    body: Any

    @property
    def key(self) -> str:
        return repr(self)


class KindSink:
    """An HTTP server, and a proxy that ends TLS itself, that keep every request."""

    def __init__(self, kind: str, certificate: ssl.SSLContext) -> None:
        self.requests: list[Received] = []
        self.groups: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                self.send_response(200)
                self.end_headers()
                with certificate.wrap_socket(self.connection, server_side=True) as secure:
                    self.connection, self.rfile, self.wfile = (
                        secure,
                        secure.makefile("rb"),
                        secure.makefile("wb"),
                    )  # type: ignore[assignment]
                    self.handle_one_request()
                self.close_connection = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                parts = urlsplit(self.path)
                answer: object = {}
                with sink.changed:
                    if parts.path == "/webhook":
                        sink.groups.append(json.loads(body))
                    else:
                        answer = ANSWERS.get(kind, lambda path: {})(parts.path)
                        headers = {name.lower(): value for name, value in self.headers.items()}
                        sink.requests.append(
                            Received(
                                self.command,
                                parts.path,
                                tuple(parse_qsl(parts.query, keep_blank_values=True)),
                                tuple((name, headers[name]) for name in COMPARED_HEADERS if name in headers),
                                json.loads(body) if body else None,
                            )
                        )
                    sink.changed.notify_all()
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.wfile.flush()

            do_PUT = do_GET = do_POST

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def wait_for_group(self, count: int) -> dict[str, Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.groups) >= count, PATIENCE_SECONDS)
            return self.groups[count - 1]

    def taken(self, expected: int) -> list[Received]:
        """The requests since the last call, in an order that does not depend on threads."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= expected, PATIENCE_SECONDS), (
                self.requests
            )
            taken, self.requests = self.requests, []
        return sorted(taken, key=lambda request: request.key)


@contextmanager
def running_kind_sink(kind: str, tmp_path: Path) -> Iterator[KindSink]:
    sink = KindSink(kind, make_certificate(tmp_path).server_context())
    with sink.server, serving_in_thread(sink.server):
        yield sink


def config_text(kind: str, url: str, *, is_real: bool) -> str:
    """Alertmanager needs a proxy to reach us instead of a service whose URL is fixed."""
    proxy = f"http_config: {{proxy_url: '{url}', tls_config: {{insecure_skip_verify: true}}}}"
    entries = KINDS[kind].replace("SINK", url).replace(", PROXY", f", {proxy}" if is_real else "")
    return f"""
route: {{receiver: all, group_by: [alertname], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
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
            "startsAt": to_rfc3339(now - 60),
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
                sent_at - 1 if alert["status"] == "resolved" else sent_at + 300,
                alert["generatorURL"],
                fingerprint=alert["fingerprint"],
            )
            for alert in group["alerts"]
        ],
        reason=Reason.FIRST,
        external_url=group["externalURL"],
        sent_at=sent_at,
        route_labels={},
    )


@pytest.mark.engine("alertmanager")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_sends_what_alertmanager_sends(kind: str, tmp_path: Path) -> None:
    with running_kind_sink(kind, tmp_path) as theirs, running_kind_sink(kind, tmp_path) as ours:
        channels = own_channels(kind, ours.url, tmp_path)
        with running_alertmanager(config_text(kind, theirs.url, is_real=True)) as base:
            for phase, ends_at in enumerate((None, time.time()), 1):
                call("POST", f"{base}/api/v2/alerts", alerts(time.time(), ends_at))
                group = to_notification(theirs.wait_for_group(phase), time.time())
                for channel in channels:
                    channel.sender.send(group, 10.0)
                sent = ours.taken(len(channels))
                assert sent == theirs.taken(len(sent))


def own_channels(kind: str, url: str, tmp_path: Path) -> list[Channel]:
    path = tmp_path / "alertmanager.yml"
    path.write_text(config_text(kind, url, is_real=False))
    config = load_alerting(path)
    configs = [
        replace(entry, api_url=f"{url}/1/messages.json") if isinstance(entry, PushoverConfig) else entry
        for entry in config.receivers["all"].channels
        if entry.kind == kind
    ]
    return build_receiver("all", configs, config.messages)
