"""Attacks by remote write: floods of series, long labels, symbol tables (by scrape: `test_writes`)."""

from __future__ import annotations

import random
import time

from gpuscope.base.varint import encode_varint
from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from tests.hostile.catalogue import Attack
from tests.hostile.victim import Victim, Watch
from tests.remote_write.write_v2 import message, packed, sample

V1 = {"content-type": "application/x-protobuf", "content-encoding": "snappy"}
V2 = {**V1, "content-type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
MAX_SERIES = {"GPUSCOPE_MAX_SERIES": "20000"}


def _now() -> int:
    return time.time_ns() // 1_000_000


def _post(victim: Victim, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    status, text = victim.request("POST", "/api/v1/write", packed(body), headers)
    return status, text.decode()


def _series(first: int, count: int, text: str = "", **more: str) -> bytes:
    labels = ([("__name__", "flood"), ("id", f"{n}{text}"), *more.items()] for n in range(first, first + count))
    at = _now()
    return encode_samples((encode_labels(one), at, 1.0) for one in labels)


def _write_series(victim: Victim, watch: Watch) -> None:
    status, text = _post(victim, _series(0, 10_000), V1)
    assert status == 204, text
    for part in range(1, 5):
        status, text = _post(victim, _series(part * 10_000, 10_000), V1)
    watch.meanwhile()
    assert status == 400
    assert "max_series" in text
    assert _post(victim, _series(0, 10_000), V1)[0] in (204, 400)
    assert victim.metric("gpuscope_store_series") <= 20_000
    assert victim.limit_reached("max_series") > 0


def _write_many_series(victim: Victim, watch: Watch) -> None:
    refused = ""
    for part in range(12):
        status, text = _post(victim, _series(part * 25_000, 25_000), V1)
        refused = text if status == 400 else refused
    watch.meanwhile()
    assert "max_new_series" in refused
    assert victim.limit_reached("max_new_series") > 0


def _long_labels(victim: Victim, watch: Watch) -> None:
    status = 0
    for part in range(10):
        noise = random.Random(part).randbytes(15_000).hex()
        status, text = _post(victim, _series(part * 500, 500, noise), V1)
    watch.meanwhile()
    assert status == 400
    assert "max_series" in text or "max_new_series" in text


def _tiny_pieces(victim: Victim, watch: Watch) -> None:
    labels = message(1, message(1, b"") * 8_000_000)
    samples = message(1, message(2, b"") * 8_000_000)
    for body, why in (
        (message(1, b"") * 8_000_000, "write_max_samples"),
        (labels, "write_max_labels"),
        (samples, "write_max_samples"),
    ):
        status, text = _post(victim, body, V1)
        assert (status, why in text) == (400, True), text
    watch.meanwhile()


def _symbol_bombs(victim: Victim, watch: Watch) -> None:
    table = message(4, b"") + message(4, b"__name__") + message(4, b"m")
    one = message(1, b"\x01\x02") + message(2, sample(_now(), 1.0))
    for body, why in (
        (message(4, b"a") * 8_000_000, "write_max_symbols"),
        (table + message(5, b"") * 8_000_000, "write_max_samples"),
        (table + message(5, message(1, b"\x00" * 16_000_000)), "write_max_samples"),
        (table + message(5, message(1, b"\x01\x02" * 100_000)), "write_max_labels"),
        (table + message(5, message(1, encode_varint(2**31) * 2)), "beyond the 3 symbols"),
        (
            message(4, b"n") + message(4, b"x" * 60_000) + message(5, message(1, b"\x00\x01" * 500)) * 5,
            "write_max_decoded_bytes",
        ),
    ):
        status, text = _post(victim, body, V2)
        assert (status, why in text) == (400, True), text
    watch.meanwhile()
    assert _post(victim, table + message(5, one), V2)[0] == 204


def _snappy_bomb(victim: Victim, watch: Watch) -> None:
    for size in (1 << 31, (32 << 20) + 1):
        status, body = victim.request("POST", "/api/v1/write", encode_varint(size) + b"\x00" * 1000, V1)
        assert (status, b"write_max_decoded_bytes" in body) == (400, True)
    watch.meanwhile()


ATTACKS = (
    Attack(
        "series flood by remote write",
        "50,000 new series with a limit of 20,000",
        "new ones are refused with the name of the limit; existing ones continue",
        _write_series,
        env=MAX_SERIES,
    ),
    Attack(
        "series flood by remote write, default limits",
        "300,000 new series as fast as they are accepted",
        "max_new_series stops it",
        _write_many_series,
        slow=True,
    ),
    Attack(
        "label flood",
        "5,000 series with labels of 30 kB, 150 MB in all, with a limit of 20,000 series",
        "label text counts as series",
        _long_labels,
        env=MAX_SERIES,
        slow=True,
    ),
    Attack(
        "empty elements",
        "16 MB of empty series, or of empty labels or samples of one series, compressed to some kB",
        "400 before all of them are read",
        _tiny_pieces,
        slow=True,
    ),
    Attack(
        "symbol bombs",
        "remote write 2.0 with millions of symbols, series or references, and references to nothing",
        "400; the next valid request is accepted",
        _symbol_bombs,
        slow=True,
    ),
    Attack(
        "snappy bomb",
        "a block that claims to contain 2 GiB",
        "400 without decompressing it",
        _snappy_bomb,
    ),
)
