"""Our notifier, on a clock we move, against the recorded timeline of a real Alertmanager."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.judge.notify import notifier as notifier_module
from gpuscope.judge.notify.notification import Reason
from tests.goldens import GOLDEN, check_golden
from tests.notify.scenarios import config_text
from tests.notify.timeline import canonical, run_notifier


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "alertmanager.yml"
    path.write_text(config_text("http://127.0.0.1:1"))
    return path


def test_the_same_messages_in_the_same_flushes(config: Path) -> None:
    check_golden(Path("notify/alertmanager_timeline.json"), canonical(run_notifier(config)).encode())


def test_a_wrong_engine_is_noticed(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the log, every flush would repeat its message."""
    monkeypatch.setattr(notifier_module, "reason_to_notify", lambda *args, **kwargs: Reason.FIRST)
    expected = (GOLDEN / "notify/alertmanager_timeline.json").read_text()
    assert canonical(run_notifier(config)) != expected
