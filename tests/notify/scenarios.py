"""Scripted scenarios for Alertmanager and for our notifier: one configuration, actions at given seconds.

Every alert has the label `scenario`, by which the route tree separates them, so that one run of a few seconds
holds all. Actions are at half seconds between flushes: first flush after 1 s, then every 2 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.fakes import Keywords

DURATION_SECONDS = 10.4
HOSTILE = '<script>&"\\\u2028 *_`@everyone` é\U0001f600'

CONFIG = """
global: {resolve_timeout: 3500ms}
route:
  receiver: root
  group_by: [alertname]
  group_wait: 1s
  group_interval: 2s
  repeat_interval: 1h
  routes:
  - {receiver: wait, matchers: ['scenario="wait"']}
  - {receiver: interval, matchers: ['scenario=interval']}
  - {receiver: repeat, matchers: ['{scenario="repeat"}'], repeat_interval: 3s}
  - {receiver: resolve, match_re: {scenario: 'res.*ve'}}
  - {receiver: short, match_re: {scenario: 'sh.*t'}}
  - {receiver: inhibition, matchers: ['scenario="inhibition"', 'none!="x"'], group_by: [alertname, node]}
  - {receiver: silence, matchers: ['scenario=~"sil(ence|k)"']}
  - {receiver: muted, matchers: ['scenario="muted"'], mute_time_intervals: [always]}
  - {receiver: inactive, matchers: ['scenario="inactive"'], active_time_intervals: [never]}
  - {receiver: active, matchers: ['scenario="active"'], active_time_intervals: [always],
     mute_time_intervals: [never]}
  - {receiver: firing-only, matchers: ['scenario="firing-only"']}
  - {receiver: some-resolved, matchers: ['scenario="some-resolved"'], group_by: []}
  - {receiver: old, matchers: ['scenario="old"']}
  - {receiver: first, matchers: ['scenario="continue"'], continue: true}
  - receiver: second
    matchers: ['scenario="continue"']
    routes: [{matchers: ['depth="2"'], group_by: ['...']}]
  - {receiver: truncated, matchers: ['scenario="truncated"'], group_by: [scenario]}
  - {receiver: timeout, matchers: ['scenario="timeout"']}
  - {receiver: hostile, matchers: ['scenario="hostile"', '"a b"!~"x.*"'], group_by: ['text', 'a b']}
  - {receiver: order, matchers: ['scenario="order"'], group_by: [scenario]}
  - {receiver: update, matchers: ['scenario="update"'], repeat_interval: 3s}
  - {receiver: two.channels, matchers: ['scenario="two"']}
  - {receiver: held, matchers: ['scenario="held"'], group_by: [alertname, node]}
  - {receiver: often, matchers: ['scenario="often"'], repeat_interval: 1s}
  - {receiver: at-once, matchers: ['scenario="at-once"'], group_wait: 0s, group_interval: 4s}
  - {receiver: merge, matchers: ['scenario="merge"']}
  - {receiver: never-fired, matchers: ['scenario="never-fired"']}
  - receiver: parent
    matchers: ['scenario="inherited"']
    continue: true
    mute_time_intervals: [always]
    group_by: [node]
    routes:
    - receiver: child
      matchers: ['child!=""']
      routes: [{matchers: ['child="2"'], receiver: grandchild, group_by: []}]
  - {receiver: after, matchers: ['scenario="inherited"']}
inhibit_rules:
- {source_matchers: [alertname=Holder], target_matchers: [alertname=Held], equal: [scenario, missing]}
- {source_matchers: [alertname=Source], target_matchers: [alertname=Target], equal: [scenario, node]}
- {source_matchers: [both=yes], target_matchers: [both=yes], equal: [scenario]}
time_intervals:
- name: always
  time_intervals: [{years: ['2000:2999']}]
- name: never
  time_intervals: [{years: ['1999']}]
receivers:
- name: root
  webhook_configs: [{url: 'URL/root'}]
RECEIVERS- name: firing-only
  webhook_configs: [{url: 'URL/firing-only', send_resolved: false}]
- name: truncated
  webhook_configs: [{url: 'URL/truncated', max_alerts: 2}]
- name: two.channels
  webhook_configs: [{url: 'URL/two-a'}, {url: 'URL/two-b', send_resolved: false}]
"""
PLAIN = (
    "wait", "interval", "repeat", "resolve", "short", "inhibition", "silence", "muted", "inactive", "active",
    "some-resolved", "old", "first", "second", "timeout", "hostile", "order", "update", "held", "often",
    "at-once", "merge", "never-fired", "parent", "child", "grandchild", "after",
)  # fmt: skip


def config_text(url: str) -> str:
    plain = "".join(f"- name: {one}\n  webhook_configs: [{{url: 'URL/{one}'}}]\n" for one in PLAIN)
    return CONFIG.replace("RECEIVERS", plain).replace("URL", url)


@dataclass(frozen=True)
class Action:
    """At `at` seconds: alerts, a silence, or the end of the silence of that comment."""

    at: float
    alerts: list[dict[str, Any]] = field(default_factory=list)
    silence: dict[str, Any] | None = None
    expire: str = ""


def alert(
    scenario: str, name: str = "A", *, start: float = 0.0, end: float | None = 3600.0, **labels: str
) -> Any:
    """`start` and `end` are seconds of the scenario; without an end Alertmanager sets one."""
    return {
        "labels": {"alertname": name, "scenario": scenario, **labels},
        "annotations": {"summary": f"{name} of {scenario}"},
        "generatorURL": f"http://prometheus.example/graph?g0.expr={name}&x=<1>",
        "start": start,
        "end": end,
    }


def annotated(scenario: str, text: str) -> Any:
    return {**alert(scenario), "annotations": {"summary": text}}


ACTIONS = (
    Action(
        0.0,
        [
            alert("wait"),
            alert("interval"),
            alert("repeat"),
            alert("resolve"),
            alert("short"),
            alert("inhibition", "Source", node="n1"),
            alert("inhibition", "Target", node="n1"),
            alert("inhibition", "Target", node="n2"),
            alert("inhibition", "Both", both="yes", node="n3"),
            alert("inhibition", "Both", both="yes", node="n4"),
            alert("muted"),
            alert("inactive"),
            alert("active"),
            alert("firing-only"),
            alert("some-resolved", "A"),
            alert("some-resolved", "B"),
            alert("old", start=-600.0),
            alert("continue"),
            alert("continue", depth="2", x="1"),
            *(alert("truncated", f"T{n}", instance=f"i{9 - n}") for n in range(4)),
            alert("timeout", end=None),
            {
                **alert("hostile", "A", **Keywords({"text": HOSTILE, "a b": "c"})),
                "annotations": {"x": HOSTILE, "empty": ""},
            },
            alert("order", "Z", job="b", instance="1"),
            alert("order", "Y", job="a", instance="2"),
            alert("order", "X", job="a", instance="1", more="1"),
            alert("order", "W", instance="0"),
            alert("order", "V"),
            alert("order", "V", zone="1"),
            alert("order", "V", cell="1"),
            alert("unrouted", "Root"),
            annotated("update", "first"),
            alert("two"),
            alert("held", "Held", node="n1"),
            alert("held", "Silenced", node="n2"),
            alert("often"),
            alert("at-once"),
            alert("merge", "TimeoutAfterEnd", start=-5.0, end=8.0),
            alert("merge", "EndAfterTimeout", end=None),
            alert("merge", "Future", start=600.0),
            alert("merge", "Apart", end=2.5),
            alert("never-fired", start=-60.0, end=-30.0),
            alert("inherited", node="n1"),
            alert("inherited", node="n2", child="1"),
            alert("inherited", node="n3", child="2"),
        ],
        {"matchers": [{"name": "scenario", "value": "silence", "isRegex": False}], "comment": "one"},
    ),
    Action(0.4, [alert("silence"), alert("wait", node="n2", start=0.5), alert("short", end=0.4)]),
    Action(
        1.9,
        [
            alert("interval", node="n2", start=1.5),
            alert("resolve", end=1.5),
            alert("firing-only", end=1.5),
            alert("some-resolved", "B", end=1.5),
            alert("two", end=1.5),
            alert("held", "Holder", start=1.5),
            alert("at-once", "A", node="n3", start=1.5),
            # An end that was given holds against a later end by time-out, and the earliest start.
            alert("merge", "TimeoutAfterEnd", start=1.0, end=None),
        ],
        {"matchers": [{"name": "alertname", "value": "Silenced", "isRegex": False}], "comment": "held"},
    ),
    Action(
        2.4,
        [
            # Muted while they are resolved: nobody is told, now or later.
            alert("held", "Held", node="n1", end=2.0),
            alert("held", "Silenced", node="n2", end=2.0),
            # An end by time-out does not hold against one that is given.
            alert("merge", "EndAfterTimeout", end=2.9),
        ],
        expire="one",
    ),
    Action(
        4.0,
        [
            alert("inhibition", "Source", node="n1", end=3.5),
            annotated("update", "second"),
            alert("held", "Holder", start=1.5, end=3.9),
            # Begins after the last one has ended: not merged, so it has a new start.
            alert("merge", "Apart", start=3.9),
        ],
    ),
    Action(
        4.3,
        [alert("resolve", start=4.0), alert("firing-only", start=4.0), alert("some-resolved", "A", end=4.0)],
    ),
    Action(4.6, expire="held"),
    Action(
        6.1,
        [
            alert("silence", end=6.0),
            alert("two", start=6.0),
            alert("held", "Held", node="n1", start=6.0),
            alert("held", "Silenced", node="n2", start=6.0),
        ],
    ),
)
