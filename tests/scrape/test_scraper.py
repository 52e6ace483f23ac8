"""Scraping over real sockets: valid, hostile, added and removed targets."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.http_config import HttpConfig, basic_header
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.promql import Engine
from gpuscope.history.scrape.config import ScrapeConfig, ScrapeJob, TargetGroup, load_config
from gpuscope.history.scrape.fetch import ScrapeBodyBudget, ScrapeError
from gpuscope.history.scrape.job_options import JobLimits
from gpuscope.history.scrape.relabel import RelabelRule
from gpuscope.history.scrape.scraper import Scraper
from gpuscope.history.store import Store, StoreFullError
from gpuscope.model.exposition.series_text import TextLimits
from gpuscope.model.series import Matcher, MatchOp
from tests.scrape.exporters import Page, endless, serving, silent, status, text
from tests.waiting import wait_in_loop_for

FAST = 0.3
"""Interval and timeout of scrapes, in seconds. On a busy machine a scrape may exceed it: a test waits for the
state it is about."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data") as store:
        store.start()
        yield store


def job(name: str, address: str, path: str = "/metrics", **options: Any) -> ScrapeJob:
    options = {"interval": FAST, "timeout": FAST, **options}
    return ScrapeJob(name, metrics_path=path, static=(TargetGroup((address,)),), **options)


def scrape(
    store: Store,
    config: ScrapeConfig,
    until: Callable[[Scraper], bool],
    reload_config: Callable[[], ScrapeConfig] | None = None,
) -> Scraper:
    """Runs a scraper until `until` holds."""
    workers = ThreadPoolExecutor(2)
    scraper = Scraper(store, config, workers, reload_config=reload_config)

    async def run() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(scraper.run(stop))
        try:
            await wait_in_loop_for(lambda: until(scraper))
        finally:
            stop.set()
            await running

    asyncio.run(run())
    workers.shutdown()
    return scraper


def states(scraper: Scraper) -> dict[str, dict[str, Any]]:
    return {one["scrapePool"]: one for one in scraper.targets_json("any")["activeTargets"]}


def settled(scraper: Scraper) -> bool:
    active = scraper.targets_json("active")["activeTargets"]
    return bool(active) and all(one["health"] != "unknown" for one in active)


def is_up(*jobs: str) -> Callable[[Scraper], bool]:
    return lambda scraper: all(states(scraper).get(name, {}).get("health") == "up" for name in jobs)


def is_told(**errors: str) -> Callable[[Scraper], bool]:
    """Whether the last error of each job has these words."""
    return lambda scraper: all(
        words in states(scraper).get(name, {}).get("lastError", "") for name, words in errors.items()
    )


def names(store: Store) -> set[str]:
    return set(store.label_values("__name__"))


HOSTILE: dict[str, tuple[Callable[[threading.Event], Page], str]] = {
    "large": (lambda stop: endless(b"a" * 65536 + b" 1\n", stop), "body_size_limit"),
    "bomb": (
        lambda stop: text(gzip.compress(b"a 1\n" * 2_000_000), Content_Encoding="gzip"),
        "body_size_limit",
    ),
    "drip": (lambda stop: endless(b"a", stop, 0.02), "scrape_timeout"),
    "silent": (silent, "scrape_timeout"),
    "loop": (lambda stop: status(302, Location="/loop"), "redirects"),
    "missing": (lambda stop: status(404), "HTTP status 404"),
    "broken": (lambda stop: status(500), "HTTP status 500"),
    "html": (lambda stop: text("<html><body>\n"), "not an exposition"),
    "html_type": (lambda stop: text("a 1\n", "text/html"), "unsupported Content-Type 'text/html'"),
    "no_type": (lambda stop: text("a 1\n", ""), "blank Content-Type"),
    "protobuf": (lambda stop: text("a 1\n", "application/vnd.google.protobuf"), "not requested"),
    "label": (lambda stop: text('a{x="' + "v" * 70_000 + '"} 1\n'), "scrape_max_label_value_bytes"),
    "labels": (
        lambda stop: text("a{" + ",".join(f'x{n}="1"' for n in range(600)) + "} 1\n"),
        "scrape_max_labels",
    ),
    "label_name": (lambda stop: text(f'a{{{"n" * 2000}="1"}} 1\n'), "scrape_max_label_name_bytes"),
    "line": (lambda stop: text(f"# {'x' * 200_000}\na 1\n"), "scrape_max_line_bytes"),
    "binary": (lambda stop: text(b"\x00\xff\xfe"), "UTF-8"),
    "not_gzip": (lambda stop: text("a 1\n", Content_Encoding="gzip"), "gzip"),
    "cut_gzip": (lambda stop: text(gzip.compress(b"a 1\n" * 1000)[:-9], Content_Encoding="gzip"), "too early"),
    "brotli": (lambda stop: text("a 1\n", Content_Encoding="br"), "'br'"),
    "million": (lambda stop: text("".join(f"m{n} 1\n" for n in range(100_000))), "sample_limit"),
}


def test_cookies_are_not_kept(store: Store) -> None:
    seen: list[str] = []

    def page(request: Any) -> None:
        seen.append(request.headers.get("Cookie", ""))
        text("a 1\n", Set_Cookie=f"c{len(seen)}=1")(request)

    with serving({"/metrics": page}) as address:
        scrape(store, ScrapeConfig(jobs=(job("j", address),)), lambda _: len(seen) > 2)
    assert set(seen) == {""}


def test_hostile_targets_fail_with_a_reason_and_others_are_scraped(store: Store) -> None:
    stop = threading.Event()
    pages = {f"/{name}": make(stop) for name, (make, _) in HOSTILE.items()} | {"/metrics": text("good 1\n")}
    limits = JobLimits(body_bytes=1 << 20, samples=50_000, text=TextLimits(line_bytes=100_000))
    before = LIMITS_REACHED.counts()
    told: dict[str, str] = {}
    wanted = {name: why for name, (_, why) in HOSTILE.items()} | {
        "refusing": "refused",
        "good": "",
        "nobody": "",
    }

    def all_told(scraper: Scraper) -> bool:
        """On a busy machine an answer may come too late once, and not all have the same good moment."""
        for name, one in states(scraper).items():
            health = "up" if name == "good" else "down"
            if one["health"] == health and wanted[name] in one["lastError"]:
                told[name] = one["lastError"]
        return told.keys() == wanted.keys()

    with serving(pages) as address:
        jobs = [job(name, address, f"/{name}", limits=limits, interval=1.0, timeout=0.5) for name in HOSTILE]
        jobs.append(job("good", address, interval=1.0, timeout=1.0))
        jobs.append(job("refusing", "127.0.0.1:1", interval=1.0, timeout=1.0))
        jobs.append(job("nobody", "no-such-host.invalid:1", interval=1.0, timeout=0.5))
        scraper = scrape(store, ScrapeConfig(jobs=tuple(jobs)), all_told)
        stop.set()
    reached = {name for name, count in LIMITS_REACHED.counts().items() if count > before[name]}
    assert reached == {
        "scrape_max_body_bytes",
        "scrape_max_samples",
        "scrape_max_line_bytes",
        "scrape_max_labels",
        "scrape_max_label_name_bytes",
        "scrape_max_label_value_bytes",
    }
    assert told["good"] == ""
    health = {name: one["health"] for name, one in states(scraper).items() if name != "good"}
    assert health == dict.fromkeys([*HOSTILE, "refusing", "nobody"], "down")
    reports = {name for name in names(store) if name.startswith(("scrape_", "up"))}
    assert names(store) - reports == {"good"}


def test_duplicates_and_timestamps_keep_a_target_up(store: Store) -> None:
    with serving({"/metrics": text("a 1\na 2\n")}) as address:
        scraper = scrape(store, ScrapeConfig(jobs=(job("twice", address),)), is_told(twice="duplicate series"))
    assert states(scraper)["twice"]["health"] == "up"


def test_request_headers(store: Store) -> None:
    seen: list[tuple[str, dict[str, str]]] = []

    def page(request: Any) -> None:
        seen.append((request.path, {name.lower(): value for name, value in request.headers.items()}))
        text(gzip.compress(b"a 1\n"), Content_Encoding="gzip")(request)

    http = HttpConfig(headers=(basic_header("me", "secret"), ("X-Scope-OrgID", "t")))
    with serving({"/m": page}) as address:
        one = job("j", address, "/m", params=(("q", ("x y",)),), http=http)
        scrape(store, ScrapeConfig(jobs=(one,)), is_up("j"))
    path, headers = seen[0]
    assert path == "/m?q=x+y"
    assert headers["accept"].startswith("application/openmetrics-text;version=1.0.0")
    assert headers["accept-encoding"] == "gzip"
    assert headers["x-prometheus-scrape-timeout-seconds"] == f"{FAST:g}"
    assert headers["authorization"] == "Basic bWU6c2VjcmV0"
    assert headers["x-scope-orgid"] == "t"
    assert headers["user-agent"].startswith("gpuscope/")


def test_follow_redirects(store: Store) -> None:
    pages = {"/metrics": status(302, Location="/real"), "/real": text("a 1\n")}
    with serving(pages) as address:
        jobs = (
            job("yes", address),
            job("no", address, http=HttpConfig(follow_redirects=False)),
        )
        scrape(store, ScrapeConfig(jobs=jobs[:1]), is_up("yes"))
        scraper = scrape(store, ScrapeConfig(jobs=jobs[1:]), is_told(no="302"))
    assert states(scraper)["no"]["health"] == "down"


def test_a_redirect_to_another_address_gets_no_credentials(store: Store) -> None:
    """Redirects are followed by default, as in Prometheus; the password is for the configured address only."""
    seen: list[str | None] = []

    def record(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("Authorization"))
        text("a 1\n")(request)

    http = HttpConfig(headers=(basic_header("me", "secret"),))
    with (
        serving({"/metrics": record}) as other,
        serving({"/metrics": status(302, Location=f"http://{other}/metrics")}) as address,
    ):
        scrape(store, ScrapeConfig(jobs=(job("j", address, http=http),)), is_up("j"))
    assert set(seen) == {None}


def stale_now(store: Store, name: str) -> bool:
    newest = store.latest([Matcher("__name__", MatchOp.EQUAL, name)], 0, 2**53)
    if not newest:
        return False
    result = Engine(store).instant(name, int(newest[0].timestamps[-1]))
    return not getattr(result, "labels", None)


def test_series_of_a_removed_target_end_at_once(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    with serving({"/metrics": text("a 1\n")}) as address:
        file.write_text(json.dumps([{"targets": [address], "labels": {"rack": "7"}}]))
        one = ScrapeJob("j", interval=FAST, timeout=FAST, files=(str(file),), files_refresh=0.1)
        gone = False

        def until(scraper: Scraper) -> bool:
            nonlocal gone
            if not gone and is_up("j")(scraper):
                assert states(scraper)["j"]["labels"]["rack"] == "7"
                file.write_text("[]")
                gone = True
            return gone and stale_now(store, "a")

        scraper = scrape(store, ScrapeConfig(jobs=(one,)), until)
    assert states(scraper) == {}
    assert stale_now(store, "up")


def test_a_reload_keeps_unchanged_targets_and_ends_removed_ones(store: Store) -> None:
    with serving({"/metrics": text("a 1\n"), "/b": text("b 1\n"), "/c": text("c 1\n")}) as address:
        stays, goes, comes = job("stays", address), job("goes", address, "/b"), job("comes", address, "/c")
        reloaded = False

        def until(scraper: Scraper) -> bool:
            nonlocal reloaded
            if not reloaded and is_up("stays", "goes")(scraper):
                scraper.reload(ScrapeConfig(jobs=(stays, comes), text="new"))
                reloaded = True
            return reloaded and is_up("stays", "comes")(scraper) and stale_now(store, "b")

        scraper = scrape(store, ScrapeConfig(jobs=(stays, goes)), until)
    assert set(states(scraper)) == {"stays", "comes"}
    assert scraper.config_text() == "new"
    assert not stale_now(store, "a"), "a stop is not an end"


def test_too_many_targets_fail_the_job(store: Store) -> None:
    with serving({"/metrics": text("a 1\n")}) as address:
        many = ScrapeJob(
            "many",
            interval=FAST,
            timeout=FAST,
            limits=JobLimits(targets=1),
            static=(TargetGroup((address,)), TargetGroup((address,), {"x": "1"})),
        )
        scraper = scrape(store, ScrapeConfig(jobs=(many,)), settled)
    for one in scraper.targets_json("active")["activeTargets"]:
        assert "target_limit" in one["lastError"]
    assert names(store) & {"a"} == set()


def test_a_full_store_does_not_stop_the_scraping(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    full = True
    submit = store.submit

    def maybe(tick: Any) -> Any:
        if full:
            raise StoreFullError("the disk is full")
        return submit(tick)

    store.submit = maybe  # type: ignore[method-assign]
    with serving({"/metrics": text("a 1\n")}) as address:

        def until(scraper: Scraper) -> bool:
            nonlocal full
            if full and scraper.counts.not_stored >= 2:
                assert "not stored: the disk is full" in states(scraper)["j"]["lastError"]
                full = False
            return not full and states(scraper)["j"]["lastError"] == ""

        scrape(store, ScrapeConfig(jobs=(job("j", address),)), until)
    assert [record.message for record in caplog.records if "storing scrapes" in record.message] != []
    assert "a" in names(store)


def test_targets_and_metadata_for_the_api(store: Store) -> None:
    page = text("# HELP a Some help\n# TYPE a counter\na 1\n# TYPE b gauge\nb 2\n")
    with serving({"/metrics": page}) as address:
        one = job("j", address)
        dropped = job("d", address, relabel=(RelabelRule("drop", regex="(.*)"),))
        scraper = scrape(store, ScrapeConfig(jobs=(one, dropped)), is_up("j"))
    assert scraper.metadata() == {
        "a": [{"type": "counter", "help": "Some help", "unit": ""}],
        "b": [{"type": "gauge", "help": "", "unit": ""}],
    }
    assert scraper.targets_json("active")["droppedTargets"] == []
    assert scraper.targets_json("dropped")["activeTargets"] == []
    assert scraper.targets_json("any")["droppedTargetCounts"] == {"j": 0, "d": 1}
    counted = {family.name: family.samples for family in scraper.families()}
    assert counted["gpuscope_scrape_scrapes_total"][0][1] >= 1


def test_a_rotated_token_is_used(store: Store, tmp_path: Path) -> None:
    seen: list[str] = []

    def page(request: Any) -> None:
        seen.append(request.headers["Authorization"])
        text("a 1\n")(request)

    token, config = tmp_path / "token", tmp_path / "prometheus.yml"
    token.write_text("old\n")
    with serving({"/metrics": page}) as address:
        config.write_text(
            "scrape_configs: [{job_name: j, scrape_interval: 100ms, authorization: {credentials_file: token}, "
            f"static_configs: [{{targets: ['{address}']}}], file_sd_configs: [{{files: [x.json], "
            "refresh_interval: 100ms}]}]"
        )

        def until(scraper: Scraper) -> bool:
            if "Bearer old" in seen and token.read_text() == "old\n":
                token.write_text("new\n")
            return "Bearer new" in seen

        scrape(store, load_config(config), until, lambda: load_config(config))
    assert seen.index("Bearer new") > 0


def test_targets_above_the_limit_are_not_scraped_and_logged_once(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = tmp_path / "targets.json"
    with serving({"/metrics": text("a 1\n")}) as address:
        found.write_text(json.dumps([{"targets": [address] * 2, "labels": {"n": str(n)}} for n in range(10)]))
        one = ScrapeJob("j", interval=FAST, timeout=FAST, files=(str(found),), files_refresh=FAST)
        two = job("other", address)
        workers = ThreadPoolExecutor(2)
        scraper = Scraper(store, ScrapeConfig(jobs=(one, two)), workers, limits=Limits(scrape_max_targets=4))

        async def run() -> None:
            stop = asyncio.Event()
            running = asyncio.create_task(scraper.run(stop))
            await wait_in_loop_for(lambda: settled(scraper) and reached() >= before + 2)
            assert len(scraper.targets_json("active")["activeTargets"]) == 4
            found.write_text(json.dumps([{"targets": [address]}]))
            await wait_in_loop_for(lambda: len(scraper.targets_json("active")["activeTargets"]) == 2)
            stop.set()
            await running

        before = reached()
        with caplog.at_level("INFO"):
            asyncio.run(run())
        workers.shutdown()
    said = [record.message for record in caplog.records if "targets" in record.message]
    assert [message.partition(", after")[0] for message in said] == [
        "target limit: more than 4 targets: the rest is not scraped (scrape_max_targets)",
        "target limit: all targets are scraped again",
    ]


def reached() -> int:
    return LIMITS_REACHED.counts()["scrape_max_targets"]


def test_concurrent_large_bodies_are_limited_and_small_ones_pass() -> None:
    budget = ScrapeBodyBudget(4 << 20)
    with budget.share() as first, budget.share() as second, budget.share() as third:
        first.add(3 << 20)
        second.add(1 << 19)
        second.add(1 << 19)
        third.add(1 << 20)
        with pytest.raises(ScrapeError) as raised:
            second.add(1)
        assert raised.value.limit == "scrape_max_pending_bytes"
    with budget.share() as again:
        again.add(4 << 20)
