"""A real `gpuscope` process under attack: its address, memory and log, and what well-behaved clients observe.

`Victim.watch()` starts three observers: a probe of `/-/healthy`, another client that sends queries, and a
scrape target that records when it is scraped. Attackers use other loopback addresses (`senders`), so that
limits per client address can distinguish them.
"""

from __future__ import annotations

import itertools
import os
import re
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from tests.engines import stop_process
from tests.local_server import QuietHandler, serving_http
from tests.waiting import wait_for

GPUSCOPE = (sys.executable, "-m", "gpuscope")
PATIENCE_SECONDS = 180.0
"""After this time a hanging test fails with a report; not a performance limit. Longer than query_timeout, so
that a query which reaches it is answered."""
PROBE_SECONDS = 0.02
MIB = 1 << 20
_TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TRUSTING.check_hostname, _TRUSTING.verify_mode = False, ssl.CERT_NONE


@dataclass(slots=True)
class Observed:
    """The latencies and failures that one observer recorded."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def p50(self) -> float:
        return statistics.median(self.seconds) if self.seconds else float("inf")

    def p99(self) -> float:
        if not self.seconds:
            return float("inf")
        return sorted(self.seconds)[min(len(self.seconds) - 1, len(self.seconds) * 99 // 100)]

    def longest(self) -> float:
        return max(self.seconds, default=float("inf"))


class Watch:
    """The observers of one attack; an attack calls `meanwhile` at its peak."""

    def __init__(self, victim: Victim, question: str) -> None:
        self._victim = victim
        self._question = question
        self._stop = threading.Event()
        self._rss_before = victim.rss_bytes()
        self._scrapes_before = len(victim.scraped_at)
        self.healthy, self.other = Observed(), Observed()
        self._threads = [
            threading.Thread(target=self._ask, args=("/-/healthy", self.healthy), daemon=True),
            threading.Thread(target=self._ask, args=(question, self.other), daemon=True),
        ]

    def __enter__(self) -> Watch:
        self._victim.forget_peak()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def growth_bytes(self) -> int:
        """Return the growth of the resident memory since the watch started, at its maximum."""
        return max(0, self._victim.peak_rss_bytes() - self._rss_before)

    def scrape_gaps(self) -> list[float]:
        """Return the seconds between scrapes of the well-behaved target."""
        times = self._victim.scraped_at[max(0, self._scrapes_before - 1) :]
        return [after - before for before, after in itertools.pairwise(times)]

    def meanwhile(self, answers: int = 5, scrapes: int = 2) -> None:
        """Return when every observer was served several times; raise AssertionError if one was refused."""
        wanted = (len(self.healthy.seconds) + answers, len(self.other.seconds) + answers)
        failures = (len(self.healthy.failures), len(self.other.failures))
        scraped = len(self._victim.scraped_at) + scrapes if self._victim.is_scraping else 0

        def tell() -> str:
            return (
                f"not served during the attack: healthy {len(self.healthy.seconds)} of {wanted[0]} "
                f"{self.healthy.failures[-3:]}, other client {len(self.other.seconds)} of {wanted[1]} "
                f"{self.other.failures[-3:]}, scrapes {len(self._victim.scraped_at)} of {scraped}; "
                f"exit status {self._victim.process.poll()}; the log ends with\n{self._victim.log()[-2000:]}"
            )

        def is_served() -> bool:
            assert (len(self.healthy.failures), len(self.other.failures)) == failures, tell()
            assert self._victim.process.poll() is None, tell()
            return (
                len(self.healthy.seconds) >= wanted[0]
                and len(self.other.seconds) >= wanted[1]
                and len(self._victim.scraped_at) >= scraped
            )

        wait_for(is_served, "the observers' answers", tell)

    def _ask(self, path: str, observed: Observed) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                status, body = self._victim.get(path)
                if status == 200:
                    observed.seconds.append(time.monotonic() - began)
                else:
                    observed.failures.append(f"{status}: {body[:200]!r}")
            except (OSError, HTTPException) as error:
                observed.failures.append(repr(error))
            self._stop.wait(PROBE_SECONDS)


class Victim:
    def __init__(self, process: subprocess.Popen[bytes], log: Path, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.port = 0
        self.is_tls = False
        self.scraped_at: list[float] = []
        self.is_scraping = False
        self._log = log

    # ---- requests

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Send a request as a well-behaved client from 127.0.0.1, on a new connection."""
        return self.request("GET", path, headers=headers)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        source: str = "127.0.0.1",
    ) -> tuple[int, bytes]:
        """An attacker uses another source: what one address sends may delay its own requests."""
        connection: HTTPConnection
        address, timeout = (source, 0), PATIENCE_SECONDS
        if self.is_tls:
            connection = HTTPSConnection(
                "127.0.0.1", self.port, timeout=timeout, context=_TRUSTING, source_address=address
            )
        else:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout, source_address=address)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def metric(self, name: str, labels: str = "") -> float:
        """Return a value of its /metrics; 0 if it is absent."""
        _, body = self.get("/metrics")
        match = re.search(rf"^{name}{re.escape(labels)} (\S+)$", body.decode(), re.MULTILINE)
        return float(match[1]) if match else 0.0

    def limit_reached(self, limit: str) -> float:
        return self.metric("gpuscope_limit_reached_total", f'{{limit="{limit}"}}')

    def watch(self, question: str = "/api/v1/query?query=up") -> Watch:
        return Watch(self, question)

    # ---- process

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def log_lines(self) -> int:
        return self.log().count("\n")

    def rss_bytes(self) -> int:
        return self._status("VmRSS")

    def peak_rss_bytes(self) -> int:
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
        assert match, f"{name} of process {self.process.pid}; it ended?"
        return int(match[1]) * 1024

    # ---- waiting

    def until(self, condition: Callable[[], object], what: str) -> None:
        def look() -> object:
            ended = self.process.poll() is not None
            found = condition()
            assert found or not ended, f"it ended before {what}; the log ends with\n{self.log()[-3000:]}"
            return found

        wait_for(look, what, lambda: self.log()[-3000:])

    def until_logged(self, pattern: str) -> re.Match[str]:
        self.until(lambda: re.search(pattern, self.log()), f"{pattern!r} in the log")
        match = re.search(pattern, self.log())
        assert match
        return match


@contextmanager
def running(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    files: int | None = None,
    targets: Sequence[str] = (),
) -> Iterator[Victim]:
    """Run `gpuscope COMMAND…` on a free loopback port until the block ends; `files` is its RLIMIT_NOFILE.

    `server` gets a data folder and scrapes a small target every second, in addition to `targets`; `up` and
    `server` are ready when this returns. `{folder}` in an argument is a temporary folder.
    """
    with tempfile.TemporaryDirectory() as name, _scrape_target() as (target, scraped_at):
        folder = Path(name)
        arguments = [word.replace("{folder}", name) for word in command]
        arguments[1:1] = ["--listen", "127.0.0.1:0"]
        scrapes = arguments[0] == "server" and not {"--config", "--store", "--targets"} & set(arguments)
        if arguments[0] in ("server", "up") and "--data" not in arguments and "--store" not in arguments:
            arguments += ["--data", str(folder / "data")]
        if scrapes:
            arguments += ["--targets", ",".join((target, *targets)), "--scrape-interval", "1s"]
        with (folder / "log").open("wb") as sink:
            process = subprocess.Popen(
                [*GPUSCOPE, *arguments],
                stderr=sink,
                env={**os.environ, **(env or {})},
                preexec_fn=_with_files(files),
            )
        victim = Victim(process, folder / "log", folder)
        victim.scraped_at, victim.is_scraping = scraped_at, scrapes
        try:
            match = victim.until_logged(r"(https?)://(?:127\.0\.0\.1|localhost):(\d+)")
            victim.is_tls, victim.port = match[1] == "https", int(match[2])
            if scrapes:
                victim.until(lambda: len(scraped_at) >= 2, "two scrapes")
            yield victim
        finally:
            stop_process(process)


def _with_files(files: int | None) -> Callable[[], None] | None:
    if files is None:
        return None
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


@contextmanager
def _scrape_target() -> Iterator[tuple[str, list[float]]]:
    """A target with one series; yields its address and the growing list of scrape times."""
    scraped_at: list[float] = []

    class Target(QuietHandler):
        def do_GET(self) -> None:
            scraped_at.append(time.monotonic())
            self.answer(b"small 1\n", "text/plain; version=0.0.4")

    with serving_http(Target) as port:
        yield f"127.0.0.1:{port}", scraped_at
