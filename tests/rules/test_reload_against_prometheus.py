"""A reload in the middle of a scenario, in a real Prometheus 3.14 and in our server: the same series and POSTs.

Every alert is active before the reload. Afterwards: `for` raised and lowered, another expression, other labels,
rules with the same name and labels, a rule and a group removed, a group added, and a group left as it is.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.base.time_text import parse_rfc3339
from gpuscope.judge.rules.rule_spec import GroupSpec, group_offset_ns
from gpuscope.model.series import Labels
from tests.rules.test_against_prometheus import (
    Evaluator,
    both_running,
    longest_pause,
    own_groups,
    quiet_fraction,
    scenario_body,
    skip_if_too_slow,
    wait_until,
    without_measurements,
)
from tests.rules.test_running import metric
from tests.waiting import wait_for

UNTOUCHED = """
groups:
- name: untouched
  interval: 1s
  rules:
  - {alert: Untouched, expr: power > 100, for: 9s}
"""
BEFORE = """
- name: changed
  interval: 1s
  rules:
  - {alert: Raised, expr: power > 100}
  - {alert: Lowered, expr: power > 100, for: 1m}
  - {alert: Kept, expr: power > 100, keep_firing_for: 1m}
  - {alert: Expression, expr: power > 100, for: 2s}
  - {alert: Labels, expr: power > 100, labels: {tier: before}}
  - {alert: Twice, expr: 'power{gpu="0"} > 100', for: 8s}
  - {alert: Twice, expr: 'power{gpu="1"} > 100', for: 8s}
  - {alert: Removed, expr: power > 100}
  - {record: 'r:removed', expr: power}
  - {record: 'r:renamed_from', expr: power}
- name: removed
  interval: 1s
  rules:
  - {record: 'r:removed_group', expr: power}
"""
AFTER = """
- name: changed
  interval: 1s
  rules:
  - {alert: Raised, expr: power > 100, for: 9s}
  - {alert: Lowered, expr: power > 100, for: 2s}
  - {alert: Kept, expr: power > 1000, keep_firing_for: 3s}
  - {alert: Expression, expr: power > 120, for: 2s}
  - {alert: Labels, expr: power > 100, labels: {tier: after}}
  - {alert: Twice, expr: 'power{gpu="0"} > 50', for: 8s}
  - {alert: Twice, expr: 'power{gpu="1"} > 50', for: 8s}
  - {record: 'r:renamed_to', expr: power}
- name: added
  interval: 1s
  rules:
  - {alert: Added, expr: power > 100, for: 2s}
"""
SECOND_NS = 10**9
SECONDS = 15
RELOAD_AT = 6
RELOAD_SECONDS = 2
REMOVED_GROUP = "r:removed_group"
NAMES = '{__name__=~"ALERTS.*|r:.*"}'


def samples(start: int) -> Iterator[tuple[Labels, int, float]]:
    for gpu, watts in (("0", 150.0), ("1", 110.0)):
        labels = (("__name__", "power"), ("gpu", gpu))
        for second in range(SECONDS + 1):
            yield labels, (start + second) * 1000, watts


def series_over_time(server: Evaluator, start: int) -> dict[str, list[list[float]]]:
    """At whole seconds. A removed group's series end at the moment of the reload, which differs by up to
    RELOAD_SECONDS: they are compared before and after it."""
    end = start + SECONDS - 1
    found = server.get("query_range", query=NAMES, start=str(start + 2), end=str(end), step="1")["result"]
    reload = range(start + RELOAD_AT, start + RELOAD_AT + RELOAD_SECONDS + 1)
    return {
        json.dumps(one["metric"], sort_keys=True): [
            [at, value]
            for at, value in one["values"]
            if one["metric"]["__name__"] != REMOVED_GROUP or int(at) not in reload
        ]
        for one in found
    }


def sent(server: Evaluator, start: int) -> list[str]:
    return sorted(
        json.dumps(one)
        for one in server.sink.alerts()
        if start <= parse_rfc3339(one["startsAt"]) < start + SECONDS - 1
        and parse_rfc3339(one["endsAt"]) < start + 240 + SECONDS - 1
    )


def reloaded_at(server: Evaluator) -> float:
    [seconds] = metric(server.url, "prometheus_config_last_reload_success_timestamp_seconds")
    return float(seconds)


@pytest.mark.slow
def test_a_reload_changes_what_it_changes_in_prometheus(tmp_path: Path) -> None:
    with both_running(tmp_path, UNTOUCHED + BEFORE) as servers:
        start = int(time.time()) + 4
        for server in servers:
            server.write(scenario_body(samples(start)))
        wait_until(start + 2)
        rules = tmp_path / "rules.yml"
        added = group_offset_ns(GroupSpec("added", str(rules), SECOND_NS)) / SECOND_NS
        _, pause_ends = longest_pause(servers[0], added)
        rules.write_text(UNTOUCHED + AFTER)
        wait_until(start + RELOAD_AT + quiet_fraction(servers[0], added))
        for server in servers:
            server.process.send_signal(signal.SIGHUP)
        for server in servers:
            wait_for(lambda: "added" in {group["name"] for group in own_groups(server)})  # noqa: B023
        if max(map(reloaded_at, servers)) > start + RELOAD_AT + pause_ends:
            pytest.skip("this machine is too slow: a reload took longer than the pause between two evaluations")
        wait_until(start + RELOAD_AT + 4 + quiet_fraction(servers[0]))
        during = [without_measurements(own_groups(server)) for server in servers]
        wait_until(start + SECONDS)
        skip_if_too_slow(*servers)
        theirs, ours = (series_over_time(server, start) for server in servers)
        assert ours == theirs
        assert len(theirs) > 30
        assert during[1] == during[0]
        assert sent(servers[1], start) == sent(servers[0], start) != []
