"""A scrape target that never sends the same series twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.hostile.catalogue import MAX_GROWTH_BYTES, MAX_LOG_LINES
from tests.hostile.victim import Victim, running
from tests.local_server import QuietHandler, serving_http

MAX_SERIES = 20_000


@contextmanager
def flooding_target() -> Iterator[str]:
    """Serves 10,000 new series at each scrape."""
    scrapes = [0]

    class Target(QuietHandler):
        def do_GET(self) -> None:
            scrapes[0] += 1
            lines = (f'flood{{id="{scrapes[0]}-{n}"}} 1\n' for n in range(10_000))
            self.answer("".join(lines).encode(), "text/plain; version=0.0.4")

    with serving_http(Target) as port:
        yield f"127.0.0.1:{port}"


def last_errors(victim: Victim) -> str:
    return victim.get("/api/v1/targets")[1].decode()


def test_a_series_flood_by_scrape() -> None:
    limit = {"GPUSCOPE_MAX_SERIES": str(MAX_SERIES)}
    with flooding_target() as address, running(["server"], env=limit, targets=[address]) as victim:
        with victim.watch() as watch:
            victim.until(lambda: "series refused" in last_errors(victim), "lastError names the limit")
            watch.meanwhile()
            growth = watch.growth_bytes()
        assert "max_series" in last_errors(victim)
        assert victim.metric("gpuscope_store_series") <= MAX_SERIES + 10  # `up` and the other scrape metrics
        assert victim.limit_reached("max_series") > 0
        assert b'"1"]' in victim.get("/api/v1/query?query=count(small)")[1], "the other target is still scraped"
        assert growth <= MAX_GROWTH_BYTES
        assert victim.log_lines() <= MAX_LOG_LINES
