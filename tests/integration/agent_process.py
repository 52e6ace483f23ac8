"""A `gpuscope agent` in a separate process, as a user runs it: its metrics, its log, its end.

Tests wait for conditions instead of sleeping; after a deadline a hanging test fails with a report.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.engines import stop_process
from tests.waiting import wait_for

GPUSCOPE = [sys.executable, "-m", "gpuscope"]
PATIENCE_SECONDS = 60
OPENMETRICS = "application/openmetrics-text;version=1.0.0"

Series = Mapping[str, float]
"""Value by series text: `gpuscope_gpu_up{gpu="0",uuid="…"}`."""


def to_series(text: str) -> dict[str, float]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def of_gpu(series: Series, metric: str, gpu: int | str = 0) -> float | None:
    """Return a GPU's value; None if it is absent."""
    start = f'{metric}{{gpu="{gpu}",'
    return next((value for name, value in series.items() if name.startswith(start)), None)


def source_up(series: Series, source: str) -> float | None:
    return series.get(f'gpuscope_source_up{{source="{source}"}}')


class Agent:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.base = ""

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        address = self.base.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def text(self, accept: str = "") -> str:
        request = urllib.request.Request(f"{self.base}/metrics", headers={"Accept": accept} if accept else {})
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode())

    def series(self) -> dict[str, float]:
        return to_series(self.text())

    def until(self, condition: Callable[[Series], bool]) -> Series:
        """Return the first response that satisfies the condition."""
        last: Series = {}

        def look() -> bool:
            nonlocal last
            assert self.process.poll() is None, self.log()
            with suppress(OSError):  # 503 before the first snapshot
                last = self.series()
                return condition(last)
            return False

        def tell() -> str:
            told = [f"{name} {value}" for name, value in last.items() if name.startswith("gpuscope_source_")]
            return "\n".join([*told, self.log()])

        wait_for(look, "the agent's series", tell)
        return last

    def until_logged(self, pattern: str) -> str:
        def look() -> re.Match[str] | None:
            ended = self.process.poll() is not None  # before the log is read: its last lines count
            match = re.search(pattern, self.log())
            assert match or not ended, f"{pattern!r} is not in the log:\n{self.log()}"
            return match

        match = wait_for(look, f"{pattern!r} in the log", self.log)
        assert match
        return match[0]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def running_agent(*flags: str, env: Mapping[str, str] | None = None) -> Iterator[Agent]:
    """Run the agent on a free loopback port, reading ten times a second; always stop it."""
    command = [*GPUSCOPE, "agent", "--listen", "127.0.0.1:0", "--interval", "100ms", *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stderr=sink, env={**os.environ, **(env or {})})
        try:
            agent = Agent(process, log)
            agent.base = agent.until_logged(r"https?://127\.0\.0\.1:\d+")
            yield agent
        finally:
            stop_process(process)
