"""The doctor on text files: old ones, and folders that no node exporter reads."""

from __future__ import annotations

import os
from pathlib import Path

from gpuscope.base.settings import Settings
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import Snapshot
from gpuscope.serve.doctor import textfile_folders

FOLDER = "var/lib/node_exporter/textfile_collector"


def examine(root: Path) -> list[CheckResult]:
    context = DoctorContext(Settings(), Snapshot(node="n", taken_at=0.0), root)
    return [result for check in textfile_folders.CHECKS for result in check(context)]


def write_file(root: Path, age_seconds: float = 0.0, folder: str = FOLDER) -> None:
    path = root / folder / "gpu_sessions.prom"
    path.parent.mkdir(parents=True)
    path.write_text("")
    written_at = path.stat().st_mtime - age_seconds
    os.utime(path, (written_at, written_at))


def add_process(root: Path, pid: int, *words: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))


def test_without_a_file_nothing_is_said(tmp_path: Path) -> None:
    add_process(tmp_path, 2)
    assert examine(tmp_path) == []


def test_a_folder_that_is_read_is_fine(tmp_path: Path) -> None:
    write_file(tmp_path)
    add_process(tmp_path, 7, "/bin/node_exporter", f"--collector.textfile.directory=/{FOLDER}/")
    (found,) = examine(tmp_path)
    assert found.verdict is Verdict.GOOD


def test_a_folder_that_nobody_reads(tmp_path: Path) -> None:
    write_file(tmp_path)
    add_process(tmp_path, 2)  # kthreadd: this is the machine's own /proc
    (found,) = examine(tmp_path)
    assert found.verdict is Verdict.BAD
    assert found.what == f"no node exporter reads /{FOLDER}"
    assert "gpuscope render helm-values --for kube-prometheus-stack" in found.fix
    add_process(tmp_path, 7, "prometheus-node-exporter", "--collector.textfile.directory", "/run/prometheus")
    (found,) = examine(tmp_path)
    assert found.what == f"no node exporter reads /{FOLDER}; they read /run/prometheus"


def test_in_a_pod_without_host_pid_nothing_is_said_about_readers(tmp_path: Path) -> None:
    write_file(tmp_path)
    add_process(tmp_path, 1, "gpuscope", "textfile")
    assert examine(tmp_path) == []


def test_a_file_whose_writer_has_ended(tmp_path: Path) -> None:
    write_file(tmp_path, age_seconds=1200)
    (found,) = examine(tmp_path)
    assert found.verdict is Verdict.BAD
    assert "20 minutes old: nothing writes it any more" in found.what
    assert "collection.schedule" in found.fix


def test_the_chart_s_own_folder_has_another_name_outside(tmp_path: Path) -> None:
    write_file(tmp_path, folder="textfile")
    add_process(tmp_path, 7, "node_exporter", f"--collector.textfile.directory=/{FOLDER}")
    (found,) = examine(tmp_path)
    assert found.verdict is Verdict.NOTE
