"""The engine on an injected clock against what a real Prometheus gave; broken engines are found out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuscope.history.promql.result import Vector
from gpuscope.judge.notify.alertmanager_config import read_alerting
from gpuscope.judge.notify.alertmanager_sender import relabel_alerts
from gpuscope.judge.rules.alert_state import ActiveAlert, Alert, AlertTable
from gpuscope.judge.rules.alert_templates import GoTemplates, RuleTemplateError, TemplateData, load_templates
from gpuscope.judge.rules.evaluated_rules import AlertContext, AlertingRule
from gpuscope.judge.rules.rule_group import RuleGroup
from gpuscope.judge.rules.rule_io import RuleQueries
from gpuscope.judge.rules.unit_tests import MemoryStorage
from tests.goldens import GOLDEN as GOLDENS
from tests.rules.rig import START, KeptAlerts, Rig
from tests.rules.scenario import GOLDEN, RULES, SECONDS, picture, samples

ALERTING = {
    "alert_relabel_configs": [
        {"source_labels": ["alertname"], "regex": "Twice", "action": "drop"},
        {"target_label": "added", "replacement": "<yes> & no"},
    ]
}


class RelabelledAlerts(KeptAlerts):
    def take(self, alerts: Sequence[Alert]) -> None:
        section = read_alerting(ALERTING, "test", Path())
        labels = {"cluster": "lab", "severity": "external"}
        super().take(relabel_alerts(alerts, section.alert_relabel, labels))


def played(folder: Path, *, with_store: bool = False) -> bytes:
    rig = Rig(folder, with_store=with_store, templates=load_templates())
    try:
        rig.kept = RelabelledAlerts()
        rig.start_runner(RULES)
        rig.advance(4)  # two evaluations restore; the scenario begins after them
        start = START + 4
        rig.write(samples(start))
        rig.advance(SECONDS + 0.5)
        return picture(rig.query, rig.kept.documents(), start)
    finally:
        rig.close()


@pytest.mark.parametrize("with_store", [False, True])
def test_the_engine_gives_what_prometheus_gave(tmp_path: Path, with_store: bool) -> None:
    assert played(tmp_path, with_store=with_store).decode() == (GOLDENS / GOLDEN).read_text()


class LateQueries:
    """Runs every query at one time."""

    def __init__(self, queries: RuleQueries, at_ms: int) -> None:
        self._queries = queries
        self._at_ms = at_ms

    def instant(self, expression: str, at_ms: int) -> Vector:
        return self._queries.instant(expression, self._at_ms)


class OneTemplate:
    def expand(self, data: TemplateData) -> str:
        raise RuleTemplateError("no")


BROKEN: dict[str, tuple[type, str, Any]] = {
    "for one evaluation too long": (
        AlertTable,
        "__init__",
        lambda real: lambda self, for_ns, keep: real(self, for_ns + 1 if for_ns else 0, keep),
    ),
    "for ignored": (AlertTable, "__init__", lambda real: lambda self, for_ns, keep: real(self, 0, keep)),
    "keep_firing_for ignored": (
        AlertTable,
        "__init__",
        lambda real: lambda self, for_ns, keep: real(self, for_ns, 0),
    ),
    "keep_firing_for counts one evaluation more": (
        AlertTable,
        "__init__",
        lambda real: lambda self, for_ns, keep: real(self, for_ns, keep + 1 if keep else 0),
    ),
    "no stale markers": (
        MemoryStorage,
        "append",
        lambda real: lambda self, rule, at, samples, stale: real(self, rule, at, samples, ()),
    ),
    "limit ignored": (
        AlertTable,
        "update",
        lambda real: lambda self, found, at, limit: real(self, found, at, 0),
    ),
    "query offset ignored": (RuleGroup, "query_offset_ns", lambda real: property(lambda self: 0)),
    "sent at each evaluation": (
        ActiveAlert,
        "needs_sending",
        lambda real: lambda self, at, delay: self.state.text != "pending",
    ),
    "resolved not sent": (
        ActiveAlert,
        "needs_sending",
        lambda real: lambda self, at, delay: self.resolved_at_ns is None and real(self, at, delay),
    ),
    "queries of templates with the query offset": (
        AlertingRule,
        "evaluate",
        lambda real: (
            lambda self, queries, at, query_at, limit: real(
                self, LateQueries(queries, query_at), at, query_at, limit
            )
        ),
    ),
    "every template fails": (GoTemplates, "parse", lambda real: lambda self, text, name: OneTemplate()),
    "templates have other external labels": (
        AlertContext,
        "__init__",
        lambda real: (
            lambda self, templates, labels, *more, **named: real(
                self, templates, {"cluster": "x"}, *more, **named
            )
        ),
    ),
    "sent with a later time": (
        AlertingRule,
        "take_alerts_to_send",
        lambda real: lambda self, at, interval: real(self, at + 10**9, interval),
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_engine_is_found_out(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken = BROKEN[fault]
    monkeypatch.setattr(owner, name, broken(owner.__dict__[name]))
    assert played(tmp_path).decode() != (GOLDENS / GOLDEN).read_text()
