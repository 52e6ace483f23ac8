"""The alerting configuration without a file, of `--notify` and `--heartbeat`: routes that suit most fleets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuscope.base.errors import UsageError
from gpuscope.judge.notify.alert_matchers import parse_matchers
from gpuscope.judge.notify.alert_routes import AlertRoute, InhibitRule, child_key
from gpuscope.judge.notify.alerting_config import AlertingConfig, AlertReceiver, redact_alerting
from gpuscope.judge.notify.channel import ChannelConfig
from gpuscope.judge.notify.channels import parse_notify_url
from gpuscope.judge.rules.shipped import inhibit_rules

GROUP_BY = ("alertname", "severity")
GROUP_WAIT = 0.5
"""Alerts of one evaluation arrive together, so a short wait is enough."""
HEARTBEAT_SECONDS = 60.0
WATCHDOG = 'alertname="Watchdog"'
NOBODY, EVERYBODY, HEARTBEAT = "nobody", "notify", "heartbeat"
INFO = 'severity="info"'
INFO_GROUP_WAIT, INFO_REPEAT_INTERVAL = 600.0, 3 * 86400.0
"""Alerts that need no action wait longer, to be grouped."""
SAME_TROUBLE = ('severity="critical"', 'severity="warning"', ("alertname", "instance", "uuid"))
"""Source, target and equal labels of the inhibition rule besides those of the shipped rules."""


def default_alerting(urls: Sequence[str] = (), heartbeat_url: str = "") -> AlertingConfig:
    """Without a URL nothing is sent, but alerts and silences are still shown."""
    channels = tuple(parse_notify_url(url) for url in urls)
    receivers = {EVERYBODY: AlertReceiver(EVERYBODY, channels), NOBODY: AlertReceiver(NOBODY)}
    watchdog_receiver = HEARTBEAT if heartbeat_url else NOBODY
    if heartbeat_url:
        ping = parse_notify_url(heartbeat_url, "--heartbeat")
        if ping.kind != "webhook":
            raise UsageError("--heartbeat: must have the form https://HOST/PATH")
        receivers[HEARTBEAT] = AlertReceiver(HEARTBEAT, (ping,))
    root = AlertRoute(receiver=EVERYBODY, group_by=frozenset(GROUP_BY), group_wait=GROUP_WAIT)
    watchdog = replace(
        _child(root, WATCHDOG, 0),
        receiver=watchdog_receiver,
        group_by=frozenset(),
        group_wait=0.0,
        group_interval=HEARTBEAT_SECONDS,
        repeat_interval=HEARTBEAT_SECONDS / 2,  # shorter than the interval, or every second beat is left out
    )
    info = replace(_child(root, INFO, 1), group_wait=INFO_GROUP_WAIT, repeat_interval=INFO_REPEAT_INTERVAL)
    return AlertingConfig(
        route=replace(root, routes=(watchdog, info)),
        receivers=receivers,
        inhibit_rules=tuple(
            InhibitRule(parse_matchers(source), parse_matchers(target), equal)
            for source, target, equal in _inhibitions()
        ),
        original=_original(channels, watchdog_receiver),
    )


def _child(parent: AlertRoute, matcher: str, position: int) -> AlertRoute:
    matchers = parse_matchers(matcher)
    key = child_key(parent.key, matchers)
    return replace(parent, matchers=matchers, key=key, id=f"{key}/{position}")


def _inhibitions() -> list[tuple[str, str, tuple[str, ...]]]:
    """Source, target and equal labels: one message for a host that is down, not one for each of its parts."""
    shipped = [
        (f'alertname="{source}"', f'alertname=~"{"|".join(targets)}"', tuple(equal))
        for source, targets, equal in inhibit_rules()
    ]
    return [*shipped, SAME_TROUBLE]


def _original(channels: Sequence[ChannelConfig], watchdog_receiver: str) -> str:
    """The same as a file, for amtool; channels that Alertmanager does not have are left out."""
    receivers: list[dict[str, object]] = [{"name": EVERYBODY}, {"name": NOBODY}]
    if any(channel.kind == "webhook" for channel in channels):
        receivers[0]["webhook_configs"] = [{"url": "x"}]
    if watchdog_receiver == HEARTBEAT:
        receivers.append({"name": HEARTBEAT, "webhook_configs": [{"url": "x"}]})
    document = {
        "route": {
            "receiver": EVERYBODY,
            "group_by": list(GROUP_BY),
            "group_wait": "500ms",
            "routes": [
                {
                    "receiver": watchdog_receiver,
                    "matchers": [WATCHDOG],
                    "group_by": [],
                    "group_wait": "0s",
                    "group_interval": "1m",
                    "repeat_interval": "30s",
                },
                {"matchers": [INFO], "group_wait": "10m", "repeat_interval": "3d"},
            ],
        },
        "inhibit_rules": [
            {"source_matchers": [source], "target_matchers": [target], "equal": list(equal)}
            for source, target, equal in _inhibitions()
        ],
        "receivers": receivers,
    }
    return redact_alerting(document)
