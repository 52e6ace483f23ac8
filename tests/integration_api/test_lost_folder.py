"""A server whose data folder is deleted: `/-/ready` says so, and it goes on when there is a folder again."""

from __future__ import annotations

import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.integration_api.servers import ask, running_gpuscope, wait_for
from tests.remote_write.write_v2 import SeriesV2, encode_v2, packed

CONTENT_TYPE = "application/x-protobuf;proto=io.prometheus.write.v2.Request"


def write(url: str, value: float) -> None:
    series = SeriesV2([("__name__", "m")], [(time.time_ns() // 1_000_000, value)])
    request = urllib.request.Request(
        f"{url}/api/v1/write", packed(encode_v2(series)), {"content-type": CONTENT_TYPE}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 204


def ready(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


@pytest.mark.slow
def test_ready_says_that_the_folder_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_gpuscope(data) as url:
        write(url, 1.0)
        assert ready(url)[0] == 200
        shutil.rmtree(data)
        data.write_text("in the way")
        write(url, 2.0)
        status, text = ready(url)
        assert status == 503
        assert f"the data folder {data} was deleted" in text
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            assert b"\ngpuscope_store_lost 1\n" in answer.read()
        data.unlink()
        wait_for("ready again", lambda: ready(url)[0] == 200)
        write(url, 3.0)
        found = ask(url, "/api/v1/query", {"query": "sum_over_time(m[5m])"})
        assert found.body["data"]["result"][0]["value"][1] == "6"
