"""`gpuscope top` and `snapshot` in a real terminal (tmux), on the fake driver, the demo and a server."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.goldens import check_golden
from tests.installed import require
from tests.terminal.fake_server import Answer, fake_server
from tests.terminal.scene import fleet
from tests.waiting import wait_for

__all__ = ["driver"]

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
SIZES = [
    (80, 24),
    pytest.param((120, 40), marks=pytest.mark.slow),
    pytest.param((200, 60), marks=pytest.mark.slow),
]

BUSY_DEMO = ("top", "--source", "demo", "--scenario", "one-works")
"""GPU 0 is busy at every time of the day."""


class Tmux:
    """One window; the shell in it stays after the program."""

    def __init__(self, size: tuple[int, int], env: dict[str, str]) -> None:
        self._socket = f"gpuscope-{uuid.uuid4().hex}"
        unset = {"NO_COLOR": "", "COLUMNS": "", "LINES": "", "LC_ALL": "C.UTF-8", "PS1": "ready$ "}
        words = [f"{key}={shlex.quote(value)}" for key, value in {**unset, **env}.items() if value]
        shell = f"env -u NO_COLOR -u COLUMNS -u LINES {' '.join(words)} sh"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), shell)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._socket, *words], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def run(self, command: str) -> None:
        self._tmux("send-keys", "-l", command)
        self.type("Enter")

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._tmux("capture-pane", "-p").splitlines()]

    def wait(self, condition: Callable[[str], object]) -> list[str]:
        """The screen once the condition holds for its text."""

        def look() -> list[str] | None:
            lines = self.lines()
            return lines if condition("\n".join(lines)) else None

        return wait_for(look, "the screen", lambda: "\n".join(self.lines()))

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def open_tmux() -> Iterator[Callable[..., Tmux]]:
    opened: list[Tmux] = []

    def open_one(size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None) -> Tmux:
        opened.append(Tmux(size, env or {}))
        return opened[-1]

    yield open_one
    for tmux in opened:
        tmux.close()


def gpuscope(*words: str) -> str:
    return shlex.join([sys.executable, "-m", "gpuscope", *words])


def set_scene(driver: FakeDriver) -> None:
    for gpu in range(7):
        driver.set(
            gpu, util=10 * gpu, power_mw=100_000 + gpu * 50_000, temperature=40 + gpu, memory_used=gpu << 33
        )


def masked(lines: list[str]) -> str:
    """Without what differs from run to run: clock, host load, history."""
    lines = [re.sub(r"^\d\d:\d\d:\d\d", "HH:MM:SS", line) for line in lines]
    lines = [re.sub(r"  CPU \d.*|  RAM .*", "", line) for line in lines]
    lines = [re.sub(r"(°C(?: +\d+%)*|·)[ ▁▂▃▄▅▆▇█]*[▁▂▃▄▅▆▇█](?= |$)", r"\1 HISTORY", line) for line in lines]
    return "\n".join(re.sub(r" +", " ", line).rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("size", SIZES)
def test_top_on_the_driver(driver: FakeDriver, open_tmux: Callable[..., Tmux], size: tuple[int, int]) -> None:
    set_scene(driver)
    tmux = open_tmux(size, {**driver.env, "GPUSCOPE_NODE": "gpu-a01"})
    tmux.run(gpuscope("top", "--direct"))
    tmux.wait(lambda text: "- 7" in text)
    driver.lose(7)  # while it is shown
    lines = tmux.wait(lambda text: "X 7" in text and "60%" in text and "finding" in text)
    check_golden(Path(f"terminal/tmux-driver-{size[0]}x{size[1]}.txt"), masked(lines).encode())
    tmux.type("q")
    tmux.wait(lambda text: text.rstrip().endswith("ready$"))


@pytest.mark.parametrize("size", SIZES)
def test_top_on_a_server(open_tmux: Callable[..., Tmux], size: tuple[int, int]) -> None:
    with fake_server({"/api/live": Answer(fleet(2))}) as server:
        tmux = open_tmux(size)
        tmux.run(gpuscope("top", "--server", server.url))
        lines = tmux.wait(lambda text: "2 nodes" in text and "python" in text)
        text = masked(lines).replace(server.url, "URL")
        text = re.sub(r"http:\S*", "URL", text)
        check_golden(Path(f"terminal/tmux-server-{size[0]}x{size[1]}.txt"), text.encode())
        server.answers = {"/api/live": Answer({"error": "the engine is away"}, 503)}
        tmux.wait(lambda text: "503: the engine is away; trying" in text)
        server.answers = {"/api/live": Answer({}, 401)}
        tmux.wait(lambda text: "needs a login" in text)
        server.answers = {"/api/live": Answer(fleet(1))}
        tmux.wait(lambda text: "gpu-000  8 GPUs" in text)


def test_the_demo_keys_sizes_and_the_terminal_afterwards(open_tmux: Callable[..., Tmux]) -> None:
    tmux = open_tmux((80, 24))
    tmux.run(gpuscope(*BUSY_DEMO) + "; echo exit $?; stty -a | grep -o ' echo '")
    tmux.wait(lambda text: "SIMULATED" in text and "B 0" in text)
    tmux.type("?")
    tmux.wait(lambda text: "reverse the order" in text)
    tmux.type("Escape")
    tmux.wait(lambda text: "F1Help" in text)
    tmux.type("k")
    tmux.wait(lambda text: "is not on this machine" in text)
    tmux.resize(40, 10)
    tmux.wait(lambda text: "of 8" in text and len(text.splitlines()) <= 10)
    tmux.type("q")
    tmux.wait(lambda text: "exit 0\n echo" in text)


@pytest.mark.slow
def test_a_killed_top_restores_the_terminal(open_tmux: Callable[..., Tmux], tmp_path: Path) -> None:
    tmux = open_tmux((100, 24))
    pid_file = tmp_path / "pid"
    command = f"sh -c 'echo $$ > {pid_file}; exec {gpuscope(*BUSY_DEMO)}'"
    tmux.run(command + "; echo exit $?; stty -a | grep -o ' echo '")
    tmux.wait(lambda text: "SIMULATED" in text and "B 0" in text)
    os.kill(int(pid_file.read_text()), 15)
    tmux.wait(lambda text: "exit 143\n echo" in text)


@pytest.mark.slow
def test_snapshot_in_a_terminal_without_unicode_and_in_a_pipe(
    driver: FakeDriver, open_tmux: Callable[..., Tmux]
) -> None:
    set_scene(driver)
    tmux = open_tmux((80, 24), {**driver.env, "GPUSCOPE_NODE": "gpu-a01", "LC_ALL": "C", "PYTHONUTF8": "0"})
    tmux.run(gpuscope("snapshot", "--direct", "--ascii"))
    lines = tmux.wait(lambda text: "- 7" in text)
    assert all(line.isascii() for line in lines)
    assert any("####" in line for line in lines)
    piped = subprocess.run(
        [sys.executable, "-m", "gpuscope", "top", "--direct"],
        env={**os.environ, **driver.env, "GPUSCOPE_NODE": "gpu-a01"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "\x1b" not in piped
    assert piped.startswith("gpu-a01  8 GPUs: 6 busy, 2 idle")


GPUSTAT = "import gpustat, json; print(json.dumps(gpustat.new_query().jsonify(), default=str))"


def test_gpustat_and_nvitop_show_the_same_numbers(driver: FakeDriver) -> None:
    require("gpustat")
    require("nvitop")
    set_scene(driver)
    driver.processes(1, [Process(os.getpid(), memory=3 << 30, share=0.5)])
    env = {**os.environ, **driver.env, "COLUMNS": "200", "NO_COLOR": "1"}

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ours = run("-m", "gpuscope", "snapshot", "--direct", "--node", "n").splitlines()
    theirs = json.loads(run("-c", GPUSTAT))["gpus"]
    nvitop = run("-m", "nvitop", "-1", "--ascii")
    for gpu in theirs:
        (line,) = [line for line in ours if re.match(rf"\S {gpu['index']} ", line)]
        assert f" {gpu['utilization.gpu']}% " in line
        assert f" {gpu['temperature.gpu']}°C" in line
        assert f" {gpu['power.draw']}/{gpu['enforced.power.limit']}W" in line
        used = gpu["memory.used"]  # MiB
        assert f" {used / 1024:.1f}G/" in line or (used == 0 and " 0B/" in line)
        assert f"{gpu['power.draw']}W / {gpu['enforced.power.limit']}W" in nvitop
        assert f" {gpu['temperature.gpu']}C " in nvitop
    (process,) = [line for line in ours if f" {os.getpid()} " in line]
    assert " 3.0G " in process
    (same,) = [one for gpu in theirs for one in gpu["processes"]]
    assert (same["pid"], same["gpu_memory_usage"]) == (os.getpid(), 3072)
