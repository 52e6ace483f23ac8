"""What a service tells systemd: through a real socket, by the real commands."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.cli.wiring.service_manager import local_url, tell_systemd_ready


@pytest.mark.parametrize("command", ["agent", "up", "textfile"])
def test_a_service_says_when_it_is_ready_and_where(command: str, tmp_path: Path) -> None:
    options = {
        "agent": ["--listen", "0.0.0.0:0"],
        "up": ["--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")],
        "textfile": ["--output", str(tmp_path / "gpu.prom")],
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuscope", command, "--source", "demo", *options[command]],
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
            stderr=subprocess.DEVNULL,
        )
        try:
            told = manager.recv(4096).decode()
        finally:
            process.terminate()
            process.wait()
    if command == "textfile":
        assert told == "READY=1\n"
    else:
        assert re.fullmatch(r"READY=1\nSTATUS=listens on http://127\.0\.0\.1:[1-9]\d+\n", told)


def test_without_a_manager_nothing_is_sent(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    tell_systemd_ready("http://127.0.0.1:9400", environment={})
    assert caplog.text == ""
    tell_systemd_ready(environment={"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "No such file" in caplog.text


def test_a_local_address_works_on_this_machine() -> None:
    assert local_url("http", "", 1) == local_url("http", "0.0.0.0", 1) == "http://127.0.0.1:1"
    assert local_url("https", "::", 2) == "https://[::1]:2"
    assert local_url("http", "10.0.0.7", 3) == "http://10.0.0.7:3"
