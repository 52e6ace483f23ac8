"""Hostile scrape targets: for each a name, what it sends, and the limit or error that must stop it.

Under each of them and all together, with default limits: memory grows by at most 512 MiB, `/-/healthy` and
another client are served, the well-behaved target is still scraped, the log stays short, and the hostile target
is down with a reason.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

import pytest

from tests.hostile.victim import MIB, Victim, running
from tests.scrape.exporters import Page, endless, serving, status, text

MAX_GROWTH_BYTES = 512 * MIB
MAX_LOG_LINES = 50
TOLERANCE_SECONDS = 20.0
"""Maximum time between scrapes of the well-behaved target; allows for a busy machine."""


@dataclass(frozen=True, slots=True)
class TargetAttack:
    name: str
    sends: str
    page: Callable[[threading.Event], Page]
    """Its argument is an event that is set at the end of the test."""
    limit: str = ""
    """The limit that is reached."""
    error: str = ""
    """A part of `lastError`."""
    copies: int = 1
    """Number of such targets."""


def _repeated(piece: bytes, times: int, content_type: str = "text/plain", first: bytes = b"") -> Page:
    """A large response that is generated while it is sent."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", content_type)
        request.send_header("Content-Length", str(len(first) + len(piece) * times))
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.write(first)
            for _ in range(times):
                request.wfile.write(piece)

    return answer


def _endless_headers(stop: threading.Event) -> Page:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        with contextlib.suppress(OSError):
            request.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not stop.is_set():
                request.wfile.write(b"x: " + b"y" * 1000 + b"\r\n")

    return answer


def _bomb(stop: threading.Event) -> Page:
    return text(gzip.compress(b"\0" * (256 * MIB), 1), Content_Encoding="gzip")


ATTACKS = (
    TargetAttack(
        "a label value of 31 MB",
        "one line with one label, inside the limit on bodies",
        lambda stop: _repeated(b"v" * MIB, 31, first=b'a{x="'),
        limit="scrape_max_line_bytes",
    ),
    TargetAttack(
        "escaped quotes without an end",
        "lines of just under 1 MiB in which a quote never closes",
        lambda stop: _repeated(b'a{x="' + b'\\"' * (MIB // 2 - 10) + b"\n", 30),
        error="a label without a value",
    ),
    TargetAttack(
        "a label value of 1 MiB",
        "lines of just under 1 MiB, each one label",
        lambda stop: _repeated(b'a{x="' + b"v" * (MIB - 20) + b'"} 1\n', 30),
        limit="scrape_max_label_value_bytes",
    ),
    TargetAttack(
        "a hundred thousand labels",
        "one series with 100,000 labels in a line of 1 MiB",
        lambda stop: text(b"a{" + b",".join(b'x%d="1"' % n for n in range(90_000)) + b"} 1\n"),
        limit="scrape_max_labels",
    ),
    TargetAttack(
        "a million series",
        "1,000,000 lines, each a new series",
        lambda stop: text(b"".join(b"m%d 1\n" % n for n in range(1_000_000))),
        limit="scrape_max_samples",
    ),
    TargetAttack(
        "a million metadata lines",
        "1,000,000 HELP lines of different metrics, and a sample that cannot be read",
        lambda stop: text(b"".join(b"# HELP m%d x\n" % n for n in range(1_000_000)) + b"a\n"),
        error="line 1000001",
    ),
    TargetAttack("an endless body", "lines without an end", lambda stop: endless(b"a 1\n" * 16384, stop),
                 limit="scrape_max_body_bytes"),
    TargetAttack("an endless page", "HTML without an end", lambda stop: _endless_html(stop),
                 error="unsupported Content-Type 'text/html'"),
    TargetAttack("a slow drip", "a byte every 20 ms", lambda stop: endless(b"a", stop, 0.02),
                 error="scrape_timeout"),
    TargetAttack("endless headers", "headers without an end", _endless_headers, error="Get 'http"),
    TargetAttack("a compression bomb", "256 MiB of zeros in 1 MiB of gzip", _bomb,
                 limit="scrape_max_body_bytes"),
    TargetAttack("redirects to itself", "302 to where it is", lambda stop: status(302, Location="/metrics"),
                 error="stopped after 10 redirects"),
    TargetAttack("no content type", "text without a Content-Type", lambda stop: text("a 1\n", ""),
                 error="blank Content-Type"),
    TargetAttack(
        "twenty large responses at once",
        "20 targets with 30 MiB of long valid lines each, limited by the timeout of 1 s",
        lambda stop: _repeated(b"# " + b"x" * (MIB // 4 - 3) + b"\n", 120),
        copies=20,
    ),
)  # fmt: skip


def _endless_html(stop: threading.Event) -> Page:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/html")
        request.end_headers()
        request.close_connection = True
        with contextlib.suppress(OSError):
            while not stop.is_set():
                request.wfile.write(b"<p>" * 20_000)

    return answer


class _Served:
    """Targets that send one sample until `begin`, and then their attack."""

    def __init__(self, attacks: tuple[TargetAttack, ...]) -> None:
        self._attacks = attacks
        self._begun, self._over = threading.Event(), threading.Event()
        self._stack = ExitStack()
        self.by_address: dict[str, TargetAttack] = {}

    def __enter__(self) -> _Served:
        for attack in self._attacks:
            page = self._page(attack.page(self._over))
            for _ in range(attack.copies):
                self.by_address[self._stack.enter_context(serving({"/metrics": page}))] = attack
        return self

    def _page(self, hostile: Page) -> Page:
        return lambda request: (hostile if self._begun.is_set() else text("a 1\n"))(request)

    def begin(self) -> None:
        self._begun.set()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._stack.close()


def _targets(victim: Victim) -> dict[str, dict[str, str]]:
    _, body = victim.get("/api/v1/targets?state=active")
    return {one["labels"]["instance"]: one for one in json.loads(body)["data"]["activeTargets"]}


def _carry_out(attacks: tuple[TargetAttack, ...]) -> None:
    with _Served(attacks) as served, running(("server",), targets=tuple(served.by_address)) as victim:
        victim.until(lambda: _are_up(victim, served), "all are up")
        with victim.watch() as watch:
            served.begin()
            for address, attack in served.by_address.items():
                _await_refusal(victim, address, attack)
            watch.meanwhile()
            growth, gaps = watch.growth_bytes(), watch.scrape_gaps()
        assert growth <= MAX_GROWTH_BYTES, f"{growth / MIB:.0f} MiB"
        assert max(gaps) < TOLERANCE_SECONDS
        assert victim.log_lines() <= MAX_LOG_LINES, victim.log()[-2000:]
        measured = f"{growth / MIB:.0f} MiB, /-/healthy p99 {watch.healthy.p99():.3f} s, gap {max(gaps):.2f} s"
        print([attack.name for attack in attacks], measured)


def _are_up(victim: Victim, served: _Served) -> bool:
    shown = _targets(victim)
    return all(shown[address]["health"] == "up" for address in served.by_address)


def _await_refusal(victim: Victim, address: str, attack: TargetAttack) -> None:
    if attack.limit:
        victim.until(lambda: victim.limit_reached(attack.limit), f"{attack.limit} reached")
    if attack.copies == 1:
        victim.until(lambda: _is_refused(victim, address, attack), f"{attack.name}: down, {attack.error!r}")


def _is_refused(victim: Victim, address: str, attack: TargetAttack) -> bool:
    shown = _targets(victim)[address]
    return shown["health"] == "down" and attack.error in shown["lastError"]


QUICK = ("a label value of 31 MB", "an endless body", "an endless page", "a slow drip", "redirects to itself")


def test_some_at_once() -> None:
    _carry_out(tuple(attack for attack in ATTACKS if attack.name in QUICK))


@pytest.mark.slow
def test_all_at_once() -> None:
    _carry_out(tuple(attack for attack in ATTACKS if attack.copies == 1))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_one(attack: TargetAttack) -> None:
    _carry_out((attack,))
