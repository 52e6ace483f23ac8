"""The folder of a batch system's prolog: jobs by GPU, and a folder that is missing, hangs or has odd files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpuscope.agent.owners import job_files
from gpuscope.agent.owners.job_files import JobFiles, job_files_worker, read_job_files
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.base.errors import SourceError
from gpuscope.base.files import read_regular_file
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.fakes import FakeClock


def test_job_files_of_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("24\n\n24\n25\n")  # as dcgm-exporter wants them
    (tmp_path / "2.7").write_text("26")
    (tmp_path / "GPU-5a5a7118-e550-79a1-597e-7631e126c57a").write_text("27 1001\n")  # as jobstats writes them
    (tmp_path / "1").write_text("28_3 1001 alice ml gpu 1700000000\r\nnot a job\n")
    (tmp_path / "README").write_text("99\n")
    (tmp_path / "3").mkdir()
    os.mkfifo(tmp_path / "4")  # opening it would block
    files = read_job_files(str(tmp_path))
    assert [(claim.device_id, claim.job) for claim in files.claims] == [
        ("0", "24"),
        ("0", "25"),
        ("1", "28_3"),
        ("2.7", "26"),
        ("GPU-5a5a7118-e550-79a1-597e-7631e126c57a", "27"),
    ]
    assert files.lines["0"] == ("24", "", "25"), "whole lines, each once: dcgm-exporter's labels"
    assert files.lines["1"] == ("28_3 1001 alice ml gpu 1700000000", "not a job")
    assert "3" not in files.lines
    assert "4" not in files.lines


def test_large_files_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("\n".join(map(str, range(9_000))))
    (tmp_path / "1").write_text("7 " + "x" * 60_000)
    (tmp_path / "2").write_text("8\n" * 40_000)  # too large: the last line would be cut, and be another job
    files = read_job_files(str(tmp_path))
    assert len(files.lines["0"]) == job_files.MAX_LINES
    assert len(files.lines["1"][0]) == job_files.MAX_LINE_CHARACTERS
    assert files.lines["2"] == ()
    assert len(files.claims) == job_files.MAX_LINES + 1


def test_a_file_that_becomes_a_named_pipe_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing of the folder and the opening of the file."""
    (tmp_path / "0").write_text("24\n")
    (tmp_path / "1").write_text("25\n")

    def replace_and_read(path: Path, max_bytes: int) -> bytes:
        if path.name == "0":
            path.unlink()
            os.mkfifo(path)
        return read_regular_file(path, max_bytes)

    monkeypatch.setattr(job_files, "read_regular_file", replace_and_read)
    assert [claim.job for claim in read_job_files(str(tmp_path)).claims] == ["25"]


def test_a_missing_folder_is_absent_not_empty(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    with pytest.raises(SourceError, match="none"):
        read_job_files(str(folder))
    clock = FakeClock()
    worker = job_files_worker(Settings(job_map_dir=str(folder)), clock)
    worker.read_once()
    assert worker.fresh() is ABSENT
    folder.mkdir()
    worker.read_once()
    assert worker.fresh() == JobFiles({}, ())


def test_a_folder_that_hangs_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead NFS server blocks every call into the folder for ever; the old lines go at the deadline."""
    release, reads = threading.Event(), iter([JobFiles({"0": ("24",)}, ())])

    def read(folder: str) -> JobFiles:
        for files in reads:
            return files
        release.wait()
        return JobFiles({}, ())

    monkeypatch.setattr(job_files, "read_job_files", read)
    clock = FakeClock()
    worker = job_files_worker(Settings(job_map_dir="/dead"), clock)
    join = OwnerJoin(job_files=worker)
    devices = (make_device(uuid=Uuid("GPU-0"), index=0),)

    def lines() -> object:
        _, ownership = join.advance(ABSENT, devices, {}, simulated=False, now=0.0, monotonic=0.0)
        return ownership.job_lines

    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert worker.wake_if_due()
    assert worker.wait(5.0)
    assert lines() == {"0": ("24",)}
    clock.pass_seconds(1.0)
    assert worker.wake_if_due()
    clock.pass_seconds(59.0)
    assert lines() == {"0": ("24",)}
    clock.pass_seconds(2.0)
    assert lines() == {}
    assert not worker.status().up
    release.set()
    worker.stop()
    thread.join(5.0)
