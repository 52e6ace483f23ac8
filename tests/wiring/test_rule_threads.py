"""The thread of the rule engine goes on after a failure that no rule can cause."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpuscope.cli.wiring import rule_evaluation
from gpuscope.cli.wiring.rule_evaluation import RuleIo, RunnerThreads
from gpuscope.judge.rules.rule_io import NoSamples
from gpuscope.judge.rules.rule_runner import RuleRunner
from tests.rules.rig import Rig
from tests.waiting import PATIENCE_SECONDS


class FailsOnce(RuleRunner):
    """Its first call fails."""

    def __init__(self, rig: Rig) -> None:
        super().__init__((), rig.environment())
        self.calls = 0
        self.has_recovered = threading.Event()

    def run_due(self) -> float:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("a defect")
        self.has_recovered.set()
        return super().run_due()


def test_evaluation_goes_on_after_an_unexpected_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rule_evaluation, "RETRY_SECONDS", 0.01)
    rig = Rig(tmp_path / "rig")
    runner = FailsOnce(rig)
    threads = RunnerThreads(runner, RuleIo(rig.queries(), NoSamples(), threading.Event()), "test", 1)
    threads.start()
    assert runner.has_recovered.wait(PATIENCE_SECONDS)
    threads.stop()
    assert "a defect" in caplog.text
    assert "it is tried again in 0.01 s" in caplog.text
