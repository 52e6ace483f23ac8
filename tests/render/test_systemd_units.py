"""The units: as systemd reads them, as its own tools judge them, and how they are installed and removed."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.cli import main
from gpuscope.cli.agent import SETTINGS as AGENT_SETTINGS
from gpuscope.serve.render import FILES, write_files
from gpuscope.serve.render.systemd import (
    MARK,
    UNITS,
    UnitPlan,
    check_program,
    parse_systemd_version,
    parse_textfile_folder,
    unit_files,
)
from tests.local_server import QuietHandler, serving_http

MAX_EXPOSURE = 3.0  # systemd's own scale of 0 to 10: below 3 is "OK"
ALL = tuple(UNITS)


def units(tmp_path: Path, **changes: Any) -> Path:
    program = tmp_path / "gpuscope"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    write_files(tmp_path, unit_files(UnitPlan(services=ALL, program=program, **changes)))
    return tmp_path


def systemd_analyze(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze: not installed")
    return subprocess.run(["systemd-analyze", *argv], capture_output=True, text=True, check=False)


def test_systemd_accepts_every_unit(tmp_path: Path) -> None:
    folder = units(tmp_path)
    paths = sorted([*folder.glob("*.service"), *folder.glob("*.timer")])
    done = systemd_analyze("verify", "--man=no", *paths)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    "name", [name for service in ALL for name in UNITS[service] if name.endswith(".service")]
)
def test_the_sandbox_is_as_tight_as_systemd_calls_ok(name: str, tmp_path: Path) -> None:
    done = systemd_analyze("security", "--offline=true", "--no-pager", units(tmp_path) / name)
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) < MAX_EXPOSURE


def read_unit(name: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((FILES / "systemd" / name).read_text())
    return unit


def test_services_are_started_again_but_a_crash_loop_is_bounded() -> None:
    for service in ALL:
        unit = read_unit(UNITS[service][0])
        assert unit["Service"]["Restart"] == "always"
        assert unit["Service"]["Type"] == "notify"
        starts, seconds = int(unit["Unit"]["StartLimitBurst"]), int(unit["Unit"]["StartLimitIntervalSec"])
        pause_seconds = int(unit["Service"]["RestartSec"])
        assert pause_seconds >= 5
        assert starts * (pause_seconds + 2) < seconds, "a service that ends after two seconds is given up"
        assert unit["Install"]["WantedBy"] == "multi-user.target"
        assert unit["Service"].get("DynamicUser", "no") == ("no" if service == "textfile" else "yes")


@pytest.mark.parametrize(("version", "grows"), [(252, False), (254, True), (0, False)])
def test_pauses_grow_where_systemd_can(version: int, grows: bool) -> None:
    plan = UnitPlan(services=ALL, program=Path("/usr/bin/env"), systemd_version=version)
    for file in unit_files(plan):
        assert ("RestartSec=5\nRestartSteps=5\nRestartMaxDelaySec=5min\n" in file.content) == grows
    assert parse_systemd_version(f"systemd {version} ({version}.39-1)\n+PAM") == version
    assert parse_systemd_version("System has not been booted") == 0


def test_the_text_file_goes_with_its_service() -> None:
    service = read_unit("gpuscope-textfile.service")["Service"]
    _, _, path = service["ExecStart"].partition("--output ")
    assert service["ExecStopPost"] == f"/bin/rm -f {path}"


def test_only_units_that_read_the_kernel_log_have_a_capability() -> None:
    for service in ALL:
        unit = read_unit(UNITS[service][0])
        wanted = "CAP_SYSLOG" if service in ("agent", "up") else ""
        assert unit["Service"]["CapabilityBoundingSet"] == wanted, service


def test_the_agent_keeps_its_state_where_systemd_says() -> None:
    assert "state_dir" in AGENT_SETTINGS  # its default is $STATE_DIRECTORY
    assert read_unit("gpuscope-agent.service")["Service"]["StateDirectory"] == "gpuscope-agent"


def test_program_and_folder_are_replaced_everywhere(tmp_path: Path) -> None:
    folder = units(tmp_path, textfile_folder="/srv/textfile")
    text = "".join(path.read_text() for path in folder.glob("gpuscope-*"))
    assert "/usr/local/bin/gpuscope" not in text
    service = (folder / "gpuscope-textfile.service").read_text()
    assert "ReadWritePaths=/srv/textfile\n" in service
    assert "--output /srv/textfile/gpu_sessions.prom" in service
    assert "/var/lib/node_exporter" not in text


@pytest.mark.parametrize("text", ["relative", "/a b", "/a%n", "/a$b", '/a"b'])
def test_a_folder_that_systemd_would_read_differently_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--textfile-folder"):
        parse_textfile_folder(text)


def test_a_program_that_the_sandbox_hides_is_refused() -> None:
    with pytest.raises(UsageError, match="install gpuscope in /opt"):
        check_program(Path("/root/.local/bin/gpuscope"))
    # /dev/shm, because pytest's folders are in /tmp, which is hidden too.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        script = Path(folder, "gpuscope")
        script.write_text("#!/home/me/.pyenv/bin/python\n")
        with pytest.raises(UsageError, match=f"{script} runs with /home/me/.*/usr/bin/python3 -m venv --clear"):
            check_program(script)
    assert check_program(Path("/usr/bin/env")) == Path("/usr/bin/env")


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that records its arguments: whether units really start is shown in the systemd lab.

    `show` prints the file `shown` beside the log; journalctl prints `journal`."""
    folder, log = tmp_path / "bin", tmp_path / "systemctl.log"
    folder.mkdir()
    (tmp_path / "shown").write_text("ActiveState=active\n")
    shown = (
        f'case "$1" in show) cat {tmp_path}/shown;; --version) echo systemd 252;; *) echo "$@" >> {log};; esac'
    )
    (folder / "systemctl").write_text(f"#!/bin/sh\n{shown}\n")
    (folder / "journalctl").write_text(f"#!/bin/sh\ncat {tmp_path}/journal\n")
    for name in ("systemctl", "journalctl"):
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return log


def test_install_and_uninstall_run_systemctl_in_order(systemctl: Path, tmp_path: Path) -> None:
    folder = tmp_path / "units"
    folder.mkdir()
    options = ["--unit-folder", str(folder), "--textfile-folder", str(tmp_path / "textfile")]
    program = ["--program", "/usr/bin/env"]
    assert main(["render", "systemd", "agent", "textfile", "--install", *program, *options]) == 0
    assert {path.name for path in folder.iterdir()} == {*UNITS["agent"], *UNITS["textfile"]}
    assert (tmp_path / "textfile").is_dir()
    assert main(["render", "systemd", "--uninstall", *options]) == 0
    assert list(folder.iterdir()) == []
    assert systemctl.read_text().splitlines() == [
        "daemon-reload",
        "enable gpuscope-agent.service gpuscope-textfile.service",
        "restart --no-block gpuscope-agent.service gpuscope-textfile.service",
        "disable --now gpuscope-agent.service gpuscope-textfile.service",
        "daemon-reload",
    ]


def test_the_timer_of_an_earlier_version_and_its_file_are_removed(systemctl: Path, tmp_path: Path) -> None:
    """That version's service ended after each run and left its file."""
    folder, textfile = tmp_path / "units", tmp_path / "gpu_sessions.prom"
    folder.mkdir()
    options = ["--unit-folder", str(folder), "--textfile-folder", str(tmp_path)]
    for action in (["--install", "--program", "/usr/bin/env"], ["--uninstall"]):
        (folder / "gpuscope-textfile.timer").write_text(f"{MARK}\n[Timer]\n")
        (folder / "gpuscope-textfile.service").write_text(
            f"{MARK}\n[Service]\nExecStart=/usr/bin/env textfile --once --output {textfile}\n"
        )
        textfile.touch()
        assert main(["render", "systemd", "textfile", *action, *options]) == 0
        assert [path.name for path in folder.iterdir()] == (
            ["gpuscope-textfile.service"] if "--install" in action else []
        )
    assert not textfile.exists()
    commands = systemctl.read_text().splitlines()
    assert commands[0] == "disable --now gpuscope-textfile.timer"
    assert commands[-2] == "disable --now gpuscope-textfile.timer gpuscope-textfile.service"


def test_install_says_where_the_service_answers(
    systemctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.answer(status=200 if self.path == "/-/ready" else 404)

    options = ["--unit-folder", str(tmp_path), "--program", "/usr/bin/env"]
    with serving_http(Handler) as port:
        status = f"StatusText=listens on http://127.0.0.1:{port} http://127.0.0.1:1"
        (tmp_path / "shown").write_text(f"ActiveState=active\nSubState=running\n{status}\n")
        assert main(["render", "systemd", "agent", "--install", *options]) == 0
    assert f"gpuscope-agent.service runs and answers at http://127.0.0.1:{port}\n" in capsys.readouterr().out


@pytest.mark.parametrize("shown", ["ActiveState=activating\nSubState=auto-restart\n", "ActiveState=failed\n"])
def test_install_of_a_service_that_ends_fails_with_its_last_lines(
    systemctl: Path, tmp_path: Path, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shown").write_text(shown)
    (tmp_path / "journal").write_text("gpuscope: gpuscope up needs libstdc++.so.6, which is not installed\n")
    options = ["--unit-folder", str(tmp_path), "--program", "/usr/bin/env"]
    assert main(["render", "systemd", "up", "--install", *options]) == 1
    error = capsys.readouterr().err
    assert "gpuscope-up.service ended. Its last lines:\ngpuscope: gpuscope up needs libstdc++.so.6" in error


def test_a_unit_of_somebody_else_is_neither_replaced_nor_removed(
    systemctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "gpuscope-agent.service"
    foreign.write_text("[Service]\nExecStart=/bin/true\n")
    options = ["--unit-folder", str(tmp_path), "--program", "/usr/bin/env"]
    for action in ("--install", "--uninstall"):
        assert main(["render", "systemd", "agent", action, *options]) == 2
        assert "was not written by gpuscope" in capsys.readouterr().err
    assert foreign.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert not systemctl.exists()


def test_install_needs_names_and_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["render", "systemd", "--install", "--program", "/usr/bin/env"]) == 2
    assert "name the services" in capsys.readouterr().err
    assert main(["render", "systemd", "agent", "--install", "--program", "/usr/bin/env"]) == 2
    assert "run it as root" in capsys.readouterr().err
