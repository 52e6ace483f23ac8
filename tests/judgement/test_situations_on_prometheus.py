"""The same corpus over a real Prometheus with the shipped rule files: same alerts, same findings, same hours.

A server with `--store` asks it by HTTP. Each situation has a Prometheus of its own: rules look back for a day.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.judgement.comparison import judge
from tests.judgement.scrapes import scrape
from tests.judgement.situation import load_situation
from tests.judgement.test_situations import FILES
from tests.judgement.verdicts import Server
from tests.reports.filled_engines import prometheus

pytestmark = [pytest.mark.slow, pytest.mark.engine("prometheus")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_is_judged_right_over_prometheus(path: Path, tmp_path: Path) -> None:
    situation = load_situation(path)
    with prometheus(scrape(situation).complete, tmp_path) as new_engine:
        wrong = judge(situation, Server(new_engine, situation.start, situation.end), tmp_path / "policy")
    assert not wrong, "\n".join((situation.why, *wrong))
