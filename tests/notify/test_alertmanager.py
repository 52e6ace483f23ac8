"""The same files and alerts through a real Alertmanager and through our notifier."""

from __future__ import annotations

from pathlib import Path

from tests.engines import running_alertmanager
from tests.goldens import check_golden
from tests.notify.scenarios import config_text
from tests.notify.timeline import canonical, run_alertmanager, run_notifier, running_sink


def test_a_real_alertmanager_sends_the_recorded_timeline(tmp_path: Path) -> None:
    """GOLDEN_UPDATE=1 records it again."""
    with running_sink() as sink:
        config = tmp_path / "alertmanager.yml"
        config.write_text(config_text(sink.url))
        with running_alertmanager(config.read_text()) as base:
            timeline = run_alertmanager(base, sink)
    check_golden(Path("notify/alertmanager_timeline.json"), canonical(timeline).encode())
    assert canonical(run_notifier(config)) == canonical(timeline)
