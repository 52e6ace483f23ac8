"""The rule engine on an injected clock, over samples in memory or over a real store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.history.promql import Engine
from gpuscope.history.store import Store, Tick
from gpuscope.judge.notify.alertmanager_sender import encode_alerts
from gpuscope.judge.rules.alert_state import Alert
from gpuscope.judge.rules.alert_templates import (
    ParsedTemplate,
    RuleTemplateError,
    TemplateData,
    TemplateExpander,
)
from gpuscope.judge.rules.evaluated_rules import AlertContext, AlertingRule
from gpuscope.judge.rules.rule_file import load_rule_file
from gpuscope.judge.rules.rule_group import RuleEnvironment, RuleGroup
from gpuscope.judge.rules.rule_io import EvaluatorQueries, StoreWriter
from gpuscope.judge.rules.rule_runner import RuleRunner
from gpuscope.judge.rules.rule_spec import SECOND_NS, GroupSpec
from gpuscope.judge.rules.saved_alerts import RuleStateFile
from gpuscope.judge.rules.unit_tests import MemoryStorage
from gpuscope.model.series import Labels

START = 1_800_000_000
EXTERNAL_URL = "http://monitor.example:9090/prefix"


@dataclass
class HeldClock:
    """Stands still until a test moves it."""

    seconds: float = float(START)

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic_ms(self) -> int:
        return self.now_ms()


class _NamedLabel:
    def __init__(self, text: str) -> None:
        self._text = text

    def expand(self, data: TemplateData) -> str:
        text = self._text
        if "{{ fail }}" in text:
            raise RuleTemplateError("it fails")
        for name, value in data.labels.items():
            text = text.replace(f"{{{{ $labels.{name} }}}}", value)
        return text.replace("{{ $value }}", f"{data.value:g}").replace("{{ none }}", "")


class LabelTemplates:
    """Knows `{{ $labels.NAME }}`, `{{ $value }}`, `{{ none }}` and `{{ fail }}`."""

    def parse(self, text: str, name: str) -> ParsedTemplate:
        if text.count("{{") != text.count("}}"):
            raise RuleTemplateError(f"template: {name}: unclosed action")
        return _NamedLabel(text)


@dataclass
class KeptAlerts:
    alerts: list[Alert] = field(default_factory=list)

    def take(self, alerts: Sequence[Alert]) -> None:
        self.alerts += alerts

    def documents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(encode_alerts(self.alerts))
        return found


class Rig:
    """`with_store`: over a real store, whose commits take time."""

    def __init__(
        self, folder: Path, *, with_store: bool = False, templates: TemplateExpander | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.clock = HeldClock()
        self.memory = MemoryStorage()
        self.memory.show_until(2**62)
        self.store: Store | None = None
        if with_store:
            self.store = Store(folder / "store", clock=self.clock)
            self.store.start()
        self.templates = templates or LabelTemplates()
        self.kept = KeptAlerts()
        self.runner = self.start_runner("groups: []")

    def queries(self) -> EvaluatorQueries:
        return EvaluatorQueries(Engine(self.store or self.memory))

    def environment(self, **changes: Any) -> RuleEnvironment:
        context = AlertContext(self.templates, {"cluster": "lab"}, EXTERNAL_URL)
        values: dict[str, Any] = {
            "queries": self.queries(),
            "samples": StoreWriter(self.store) if self.store else self.memory,
            "alerts": self.kept,
            "context": context,
            "clock": self.clock,
        }
        return RuleEnvironment(**{**values, **changes})

    def specs(self, rules: str) -> tuple[GroupSpec, ...]:
        path = self.folder / "rules.yml"
        path.write_text(rules)
        return load_rule_file(str(path), 60 * SECOND_NS, self.templates)

    def start_runner(self, rules: str, **changes: Any) -> RuleRunner:
        """As a process that starts now."""
        state = RuleStateFile(self.folder / "state.json")
        self.runner = RuleRunner(self.specs(rules), self.environment(**changes), state)
        return self.runner

    def reload(self, rules: str) -> None:
        self.runner.replace_groups(self.specs(rules), self.environment())

    def write(self, samples: Iterable[tuple[Labels, int, float]]) -> None:
        for labels, time_ms, value in samples:
            if self.store is None:
                self.memory.add(labels, time_ms, value)
                continue
            target = self.store.target("input")
            ids = self.store.resolve(target, [labels])
            self.store.append(Tick(target, time_ms, ids, np.array([value])))

    def set(self, value: float, **labels: str) -> None:
        """A sample of `m` now."""
        named = tuple(sorted({"__name__": "m", **labels}.items()))
        self.write([(named, self.clock.now_ms(), value)])

    def advance(self, seconds: float) -> None:
        """Run everything that is due on the way."""
        end = self.clock.seconds + seconds
        while (wait := self.runner.run_due()) <= end - self.clock.seconds:
            self.clock.seconds += max(wait, 1e-6)
        self.clock.seconds = end
        self.runner.run_due()

    def query(self, expression: str, at: float | None = None) -> list[tuple[Mapping[str, str], float]]:
        time_ms = int((self.clock.seconds if at is None else at) * 1000)
        found = self.queries().instant(expression, time_ms)
        return list(zip(map(dict, found.labels), found.values.tolist(), strict=True))

    def group(self, name: str) -> RuleGroup:
        return next(group for group in self.runner.groups if group.spec.name == name)

    def rule(self, name: str) -> AlertingRule:
        rules = [rule for group in self.runner.groups for rule in group.alerting_rules()]
        return next(rule for rule in rules if rule.spec.name == name)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
