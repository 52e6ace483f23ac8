"""Which receivers get an alert, and which alert inhibits which: here, in amtool and in a real Alertmanager.

Odd route trees and label sets, and inhibition rules whose `equal` labels are missing on one side or on both.
`gpuscope alerts` and `silence` ask a real Alertmanager too.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuscope.base.limits import Limits
from gpuscope.cli import main
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.judge.rules.alert_state import Alert
from tests.engines import engine, running_alertmanager
from tests.notify.memory_state import MemoryState
from tests.notify.timeline import START, ManualClock, call, recording_channels
from tests.waiting import wait_for

RECEIVERS = ("root", "a", "b", "c", "d", "e", "f", "g", "h")
ROUTES = r"""
route:
  receiver: root
  group_by: ['...']
  routes:
  - {receiver: a, matchers: ['x=""', 'only!=""'], continue: true}
  - receiver: b
    matchers: ['y=~"1|2"']
    continue: true
    routes:
    - {receiver: c, matchers: [z=1]}
    - {receiver: d, matchers: [z=1], continue: true}
    - {matchers: ['z!~"1|3"'], continue: true}
    - {receiver: e, matchers: ['"a b"=~".*"', 'y!=1']}
  - receiver: f
    matchers: ['"größe"="schön \"neu\""']
    routes: [{receiver: g, routes: [{receiver: h, match_re: {deep: 'x.*y|z'}}]}]
  - {receiver: g, match: {deep: ''}, match_re: {never: a+}}
  - {receiver: h, matchers: ['{last="1",other!="2"}']}
receivers: RECEIVERS
"""
LABEL_SETS: tuple[dict[str, str], ...] = (
    {"n": "1"},
    {"only": "1"},
    {"only": "1", "x": "1"},
    {"only": "1", "y": "1"},
    {"y": "12"},
    {"y": "1", "z": "1"},
    {"y": "2", "z": "2"},
    {"y": "2", "z": "3"},
    {"y": "2", "z": "3", "a b": "c"},
    {"y": "1", "z": "3"},
    {"größe": 'schön "neu"'},
    {"größe": 'schön "neu"', "deep": "xy"},
    {"größe": 'schön "neu"', "deep": "x\ny"},
    {"größe": 'schön "neu"', "deep": "zz", "only": "1"},
    {"never": "aaa"},
    {"never": "aaa", "deep": "1"},
    {"last": "1"},
    {"last": "1", "other": "2"},
    {"last": "1", "y": "1", "only": "é"},
)


def test_routes_are_those_of_amtool(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(ROUTES.replace("RECEIVERS", f"[{', '.join(f'{{name: {one}}}' for one in RECEIVERS)}]"))
    route = load_alerting(path).route
    command: list[str | Path] = [engine("amtool"), "config", "routes", "test", f"--config.file={path}"]
    for labels in LABEL_SETS:
        words = [f'"{name}"="{_escaped(value)}"' for name, value in labels.items()]
        answer = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        assert ",".join(one.receiver for one in route.match(labels)) == answer.stdout.strip(), labels


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


INHIBITION = r"""
route: {receiver: r, group_wait: 1h}
receivers: [{name: r}]
inhibit_rules:
- source_matchers: [rule=missing, side=source]
  target_matchers: [rule=missing, side=target]
  equal: [node, gpu]
- {source_matchers: [rule=both], target_matchers: [rule=both, 'level=~"low|mid"'], equal: [rule]}
- source_matchers: [rule=self, level=~"high|mid"]
  target_matchers: [rule=self, level=~"low|mid"]
  equal: [node]
- {source_match: {rule: old}, target_match_re: {rule: 'o.*d', side: .+}}
- {source_matchers: ['"a b"="1"'], target_matchers: ['"a b"!="1"', rule="utf8"], equal: ["größe"]}
- {source_matchers: [rule=ended], target_matchers: [rule=end-target]}
- {source_matchers: [rule=nothing], equal: [side]}
"""
ALERTS: tuple[dict[str, str], ...] = (
    # Missing on both sides is equal; missing on one side is not.
    {"name": "neither", "rule": "missing", "side": "source"},
    {"name": "target of neither", "rule": "missing", "side": "target"},
    {"name": "target with a node", "rule": "missing", "side": "target", "node": "n1"},
    {"name": "source with a node", "rule": "missing", "side": "source", "node": "n2"},
    {"name": "target of that node", "rule": "missing", "side": "target", "node": "n2"},
    {"name": "target with a GPU too", "rule": "missing", "side": "target", "node": "n2", "gpu": "0"},
    # An alert that matches both sides is inhibited by one that matches the source side only.
    {"name": "source only", "rule": "both", "level": "high"},
    {"name": "both sides", "rule": "both", "level": "mid"},
    {"name": "other level", "rule": "both", "level": "none"},
    {"name": "mid alone", "rule": "self", "level": "mid", "node": "n1"},
    {"name": "low below mid", "rule": "self", "level": "low", "node": "n1"},
    {"name": "second mid", "rule": "self", "level": "mid", "node": "n3"},
    # The older keys; the source matches the target side only if it has `side`.
    {"name": "old source", "rule": "old"},
    {"name": "old target", "rule": "odd", "side": "x"},
    {"name": "no old target", "rule": "odds", "side": "x"},
    {"name": "utf8 source", "a b": "1", "größe": "2 m"},
    {"name": "utf8 target", "rule": "utf8", "größe": "2 m"},
    {"name": "utf8 other", "rule": "utf8", "größe": "3 m"},
    # A resolved source inhibits nothing.
    {"name": "ended source", "rule": "ended", "ended": "yes"},
    {"name": "its target", "rule": "end-target"},
    # A rule without target matchers has every alert as its target.
    {"name": "source of everything", "rule": "nothing", "side": "everything"},
    {"name": "anything", "side": "everything"},
)


def test_inhibition_is_that_of_alertmanager(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(INHIBITION)
    config, clock = load_alerting(path), ManualClock()
    notifier = Notifier(config, recording_channels(config, clock, []), clock, MemoryState(), Limits())
    for alert in ALERTS:
        ends_at = START - 1 if "ended" in alert else None
        notifier.put([Alert(tuple(sorted(alert.items())), (), START - 60, ends_at, "", START + 3600)])
    ours = {}
    for one in notifier.alert_statuses():
        ours[one.alert.labels["name"]] = (list(one.inhibited_by), one.state)
    assert sum(bool(inhibited_by) for inhibited_by, _ in ours.values()) == 7

    def theirs() -> dict[str, tuple[list[str], str]]:
        statuses = {one["labels"]["name"]: one["status"] for one in call("GET", f"{url}/api/v2/alerts")}
        return {name: (status["inhibitedBy"], status["state"]) for name, status in statuses.items()}

    with running_alertmanager(INHIBITION) as url:
        posted = []
        for alert in ALERTS:
            ended = "2020-01-02T00:00:00Z" if "ended" in alert else "2099-01-01T00:00:00Z"
            posted.append({"labels": alert, "startsAt": "2020-01-01T00:00:00Z", "endsAt": ended})
        call("POST", f"{url}/api/v2/alerts", posted)
        wait_for(lambda: theirs() == ours, "the same inhibitions", lambda: f"{theirs()}\n{ours}")


def test_our_commands_work_with_alertmanager(capsys: pytest.CaptureFixture[str]) -> None:
    with running_alertmanager() as url:

        def run(*words: str) -> tuple[int, str]:
            return main([*words, "--server", url]), capsys.readouterr().out

        labels = {"alertname": "Hot", "a b": 'x "y"', "node": "n1"}
        call("POST", f"{url}/api/v2/alerts", [{"labels": labels}, {"labels": {"alertname": "Cold"}}])
        code, listed = run("alerts", '"a b"="x \\"y\\""')
        assert (code, "Hot" in listed, "Cold" in listed) == (1, True, False)
        code, made = run("silence", "add", '"a b"=~"x.*"', "node!=n2", "--comment", "é")
        assert (code, len(made.strip())) == (0, 36)
        assert "Hot" not in run("alerts")[1]
        assert "suppressed" in run("alerts", "--all", "node=n1")[1]
        assert made.strip() in run("silence", "list", "node!=n2")[1]
        assert run("silence", "list", "node=n2") == (0, "no silences\n")
        assert run("silence", "expire", made.strip()) == (0, "")
        assert "Hot" in run("alerts")[1]
