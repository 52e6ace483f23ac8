"""A scrape target that never sends the same series twice."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.hostile.catalogue import MAX_GROWTH_BYTES, MAX_LOG_LINES
from tests.hostile.victim import Victim, running

MAX_SERIES = 20_000


@contextmanager
def flooding_target() -> Iterator[str]:
    """Serves 10,000 new series at each scrape."""
    scrapes = [0]

    class Target(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            scrapes[0] += 1
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            lines = (f'flood{{id="{scrapes[0]}-{n}"}} 1\n' for n in range(10_000))
            self.wfile.write("".join(lines).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


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
