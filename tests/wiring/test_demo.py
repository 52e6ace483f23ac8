"""A simulated fleet reads nothing of the machine it runs on; tests/cli/test_up.py watches a whole process."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.demo import build_demo
from tests.fakes import make_settings


def test_no_worker_of_a_demo_reads_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on a Kubernetes node, whose kubelet was read and reported as down."""
    monkeypatch.setattr(Path, "is_dir", lambda path: True)
    demo = build_demo(make_settings(source="demo", demo_nodes=2, demo_gpus=2))
    assert [[worker.name for worker in one.workers] for one in demo.collectors] == [["demo"], ["demo"]]


def test_what_a_setting_names_is_read(tmp_path: Path) -> None:
    settings = Settings(source="demo", kubelet_socket=str(tmp_path / "kubelet.sock"), job_map_dir=str(tmp_path))
    (collector,) = build_demo(settings).collectors
    assert [worker.name for worker in collector.workers] == ["demo", "kubelet", "job-files"]
