"""`http_sd_configs` with servers that change, fail and lie: the last valid targets stay, and nothing grows."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.cli.wiring.own_metrics_thread import ScraperThread
from gpuscope.history.scrape.config import ScrapeConfig
from gpuscope.history.scrape.job_options import HttpProviderConfig
from gpuscope.history.scrape.providers import DiscoveryError
from gpuscope.history.scrape.providers.http_provider import HttpProvider, decode_groups
from gpuscope.history.scrape.scraper import Scraper
from gpuscope.history.store import Store
from tests.scrape.exporters import Page, endless, serving, silent, status, text
from tests.scrape.provider_scene import addresses, does, failing, finds, read_job, run_provider
from tests.waiting import wait_for


def http(url: str, max_bytes: int = 1 << 20) -> Callable[[ThreadPoolExecutor], HttpProvider]:
    return lambda workers: HttpProvider(HttpProviderConfig(url, 0.2), workers, max_bytes)


def groups_page(*targets: str) -> Page:
    return text(json.dumps([{"targets": list(targets)}]), "application/json")


def test_failures_keep_the_last_targets_and_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    pages = {"/": groups_page("a:1")}
    with serving(pages) as address:

        def fail() -> None:
            pages["/"] = status(503)

        run_provider(
            http(f"http://{address}/"), finds("a:1"), does(fail), failing(3), finds("a:1"),
            does(lambda: pages.update({"/": groups_page("b:2")})), finds("b:2"),
            does(lambda: pages.update({"/": groups_page()})), finds(),
        )  # fmt: skip
    logged = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(logged) == 1
    assert "503" in logged[0]
    assert "keeping the last valid targets" in logged[0]


HOSTILE_PAGES: dict[str, Callable[[threading.Event], Page]] = {
    "endless": lambda stop: endless(b'[{"targets": ["' + b"a" * 65536, stop),
    "silent": silent,
    "redirects": lambda stop: status(302, Location="/"),
    "deep": lambda stop: text("[" * 200_000, "application/json"),
    "latin": lambda stop: text(b'[{"targets": ["\xff"]}]', "application/json"),
}


@pytest.mark.parametrize("name", HOSTILE_PAGES)
def test_hostile_answers_are_failures(name: str) -> None:
    stop = threading.Event()
    pages = {"/": groups_page("a:1")}
    with serving(pages) as address:
        found = run_provider(
            http(f"http://{address}/"), finds("a:1"),
            does(lambda: pages.update({"/": HOSTILE_PAGES[name](stop)})), failing(),
        )  # fmt: skip
        stop.set()
    assert addresses(found) == ["a:1"]


def test_the_size_of_an_answer_is_limited() -> None:
    before = LIMITS_REACHED.counts()["discovery_max_body_bytes"]
    with serving({"/": groups_page(*(f"host{n}:1" for n in range(1000)))}) as address:
        found = run_provider(http(f"http://{address}/", 1000), failing())
    assert LIMITS_REACHED.counts()["discovery_max_body_bytes"] > before
    assert addresses(found) == []


@given(st.binary(max_size=80) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_any_answer_is_groups_or_an_error(body: bytes | str) -> None:
    with contextlib.suppress(DiscoveryError):
        decode_groups(body if isinstance(body, bytes) else body.encode(), "http://x")


def test_a_reload_keeps_the_targets_until_the_next_answer(tmp_path: Path) -> None:
    pages = {"/": groups_page("127.0.0.1:1")}
    with serving(pages) as address, Store(tmp_path / "data") as store:
        store.start()
        config, _ = read_job(f"http_sd_configs: [{{url: 'http://{address}/', refresh_interval: 200ms}}]")
        build = lambda workers: Scraper(store, config, workers, min_update_seconds=0.0)  # noqa: E731
        with ScraperThread(build) as thread:

            def targets() -> list[str]:
                found = thread.scraper.targets_json("active")["activeTargets"]
                return [target["discoveredLabels"]["__address__"] for target in found]

            def failures() -> float:
                rows = [row for row in thread.scraper.families() if "discovery" in row.name]
                return sum(value for row in rows for _, value in row.samples)

            wait_for(lambda: targets() == ["127.0.0.1:1"], "the first answer")
            pages["/"] = status(500)
            thread.scraper.reload(config)
            wait_for(lambda: failures() > 1, "failures of the new provider")
            assert targets() == ["127.0.0.1:1"]
            thread.scraper.reload(ScrapeConfig())
            wait_for(lambda: targets() == [], "a configuration without the job")
            assert failures() > 1, "a counter does not go back"
