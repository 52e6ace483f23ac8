"""A service without HOME and without a passwd entry, as systemd's DynamicUser may start one."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy
import pytest

import gpuscope
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_path, load_settings

NO_OWNER = 54321


WHO = {"user": NO_OWNER, "group": NO_OWNER, "extra_groups": []}
MODULES = Path(gpuscope.__file__).parents[1]
PACKAGES = Path(numpy.__file__).parents[1]


def call(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{MODULES}:{PACKAGES}", **environment}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, env=base, cwd="/", capture_output=True, text=True, timeout=120, check=False, **WHO
    )


@cache
def interpreter() -> str:
    """A Python with our modules that this user may run; the test's own may be in root's home."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        try:
            if call([candidate, "-c", "import gpuscope.history.store, pynvml"], {}).returncode == 0:
                return candidate
        except OSError:
            continue
    return ""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    if not interpreter():
        pytest.skip(f"user {NO_OWNER} may run no Python that has our modules")
    return call([interpreter(), "-m", "gpuscope", *arguments], environment)


def test_the_agent_starts() -> None:
    done = run("agent", "--once", "--source", "demo", "--families", "native")
    assert done.returncode == 0, done.stderr
    assert "gpuscope_gpu_up{" in done.stdout


def test_the_agent_starts_with_a_home_it_may_not_enter(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    done = run("agent", "--once", "--source", "demo", "--families", "native", HOME=str(home))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", [("server",), ("up", "--source", "demo"), ("user", "list"), ("store", "check")]
)
def test_commands_that_need_a_folder_report_it_in_one_sentence(command: tuple[str, ...]) -> None:
    done = run(*command)
    assert done.returncode == 2
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .endswith(f"needs a home directory, but user {NO_OWNER} has none; set --data DIR")
    )
    assert "Traceback" not in done.stderr


def test_settings_need_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert load_settings({}, {}) == Settings()
    assert home_path("/var/lib/gpuscope", "data") == Path("/var/lib/gpuscope")
    with pytest.raises(UsageError, match="--store-http-config: '~/x' needs a home directory"):
        home_path("~/x", "store_http_config")
