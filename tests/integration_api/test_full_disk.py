"""A server whose disk is full: `/-/ready` answers 503 with the reason, and 200 again once there is room."""

from __future__ import annotations

import random
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.integration_api.servers import running_gpuscope, wait_for
from tests.integration_api.test_lost_folder import CONTENT_TYPE, ready
from tests.remote_write.write_v2 import SeriesV2, encode_v2, packed
from tests.store.test_failures import small_disk

__all__ = ["small_disk"]  # a fixture


def write(url: str, count: int) -> int:
    at = time.time_ns() // 1_000_000
    series = (SeriesV2([("__name__", "m"), ("i", str(i))], [(at, random.random())]) for i in range(count))
    request = urllib.request.Request(
        f"{url}/api/v1/write", packed(encode_v2(*series)), {"content-type": CONTENT_TYPE}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def test_ready_says_that_the_disk_is_full(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2_200_000))
    with running_gpuscope(small_disk / "data") as url:
        assert ready(url)[0] == 200
        statuses = [write(url, 2000) for _ in range(60) if ready(url)[0] == 200]
        assert statuses[-1] == 503, "the sender tries again later"
        status, text = ready(url)
        assert status == 503
        assert "full" in text
        ballast.unlink()
        wait_for("ready without another sample", lambda: ready(url)[0] == 200)
        assert write(url, 2000) == 204
