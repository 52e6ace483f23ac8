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
    assert "tools/get-engines" in str(engines.find_engine.__wrapped__("prometheus"))


def test_an_unknown_major_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "prometheus"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho prometheus, version 4.0.1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("GPUSCOPE_ENGINES", str(tmp_path))
    assert "version 4.0.1; these tests know 3.x" in str(engines.find_engine.__wrapped__("prometheus"))


def test_an_engine_that_dies_says_why() -> None:
    program = engines.engine("prometheus")
    with (
        pytest.raises(AssertionError, match="no-such-flag"),
        engines.running([program, "--no-such-flag"], "http://127.0.0.1:1/"),
    ):
        pass


def test_an_engine_that_is_built_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GPUSCOPE_ENGINES", "XDG_CACHE_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    assert "tools/get-engines --all builds it" in str(engines.find_engine.__wrapped__("mimir"))


@pytest.mark.slow
@pytest.mark.parametrize("start", [engines.running_thanos, engines.running_mimir])
def test_a_built_engine_takes_and_answers(start: Callable[[], AbstractContextManager[engines.Shared]]) -> None:
    with start() as shared:
        request = urllib.request.Request(f"{shared.query}/api/v1/query?query=1", headers=shared.headers("team"))
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert b'"success"' in answer.read()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(request, timeout=10)


def _get_engines(directory: Path, path: str, *flags: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent.parent / "tools" / "get-engines"
    environment = {"PATH": path, "HOME": str(directory), "GPUSCOPE_ENGINES": str(directory / "engines")}
    return subprocess.run(
        [sys.executable, script, *flags],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
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


def _with_debians(directory: Path) -> Path:
    """A folder in which only what Go builds is missing."""
    programs = directory / "engines" / "bin"
    programs.mkdir(parents=True)
    for name in engines.KNOWN_MAJORS.keys() - engines.BUILT:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return programs


def test_without_go_nothing_is_built_and_that_is_said(tmp_path: Path) -> None:
    _with_debians(tmp_path)
    done = _get_engines(tmp_path, str(tmp_path), "--all")
    assert done.returncode == 3
    for name in engines.BUILT:
        assert f"{name}: this machine has no Go" in done.stderr


FAKE_GO = """#!/bin/sh
echo "$GOFLAGS $*" >> {log}
case "$1" in
  mod) echo '{{"Dir": "{module}"}}' ;;
  build) test -w go.mod || exit 1; while [ "$1" != -o ]; do shift; done; touch "$2"; chmod +x "$2" ;;
esac
"""


def test_what_go_builds(tmp_path: Path) -> None:
    programs = _with_debians(tmp_path)
    module, log, path = tmp_path / "module", tmp_path / "log", tmp_path / "path"
    module.mkdir()
    path.mkdir()
    (module / "VERSION").write_text("9.9\n")
    (module / "go.mod").touch(0o444)  # as Go's module cache has it
    (path / "go").write_text(FAKE_GO.format(log=log, module=module))
    (path / "go").chmod(0o755)
    done = _get_engines(tmp_path, f"{path}:/usr/bin:/bin", "--all")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{name}: 9.9\n" for name in sorted(engines.BUILT))
    assert all((programs / name).stat().st_mode & 0o100 for name in engines.BUILT)
    asked = log.read_text().splitlines()
    assert asked[0].startswith(" mod download -json github.com/thanos-io/thanos@v"), (
        "no settings of ours for Go"
    )
    assert "-tags=netgo,slicelabels" in asked[1]
    assert asked[1].endswith("./cmd/thanos")
    again = _get_engines(tmp_path, f"{path}:/usr/bin:/bin", "--all")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert len(log.read_text().splitlines()) == len(asked), "what is there is not built again"
