"""The engines answer while their block runs, and are gone after it."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests import engines


@pytest.mark.parametrize(
    ("start", "page"),
    [
        (engines.running_prometheus, "/api/v1/status/buildinfo"),
        (engines.running_victoria_metrics, "/api/v1/labels"),
        (engines.running_alertmanager, "/api/v2/status"),
        (engines.running_node_exporter, "/metrics"),
    ],
)
def test_an_engine_answers_and_is_stopped(start: Callable[[], AbstractContextManager[str]], page: str) -> None:
    with start() as url, urllib.request.urlopen(url + page, timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url + page, timeout=10)


def test_a_missing_engine_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSCOPE_ENGINES", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "tools/get-engines" in str(engines._find.__wrapped__("prometheus"))


def test_an_unknown_major_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "prometheus"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho prometheus, version 4.0.1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("GPUSCOPE_ENGINES", str(tmp_path))
    assert "version 4.0.1; these tests know 3.x" in str(engines._find.__wrapped__("prometheus"))


def test_an_engine_that_dies_says_why() -> None:
    program = engines.engine("prometheus")
    with (
        pytest.raises(AssertionError, match="no-such-flag"),
        engines.running([program, "--no-such-flag"], "http://127.0.0.1:1/"),
    ):
        pass


def _get_engines(directory: Path, path: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent.parent / "tools" / "get-engines"
    environment = {"PATH": path, "HOME": str(directory), "GPUSCOPE_ENGINES": str(directory / "engines")}
    return subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_apt_the_script_says_so(tmp_path: Path) -> None:
    done = _get_engines(tmp_path, str(tmp_path))
    assert done.returncode == 3
    assert "no apt-get" in done.stderr


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    programs = tmp_path / "engines" / "bin"
    programs.mkdir(parents=True)
    for name in engines.KNOWN_MAJORS:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (tmp_path / "engines" / "versions.json").write_text('{"prometheus": "3.9"}')
    done = _get_engines(tmp_path, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "prometheus: 3.9\n", "")
