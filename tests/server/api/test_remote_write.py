from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import pytest

from gpuscope.exposition.remote_write import encode_labels, encode_samples
from gpuscope.scrape.receive import Receiver
from gpuscope.server.api import remote_write
from gpuscope.server.api.remote_write import write_route
from gpuscope.server.http.routing import Router
from gpuscope.store import Store, StoreFullError
from tests.server.client import Client

NOW = time.time_ns() // 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data") as store:
        store.start()
        yield store


@pytest.fixture
def client(store: Store) -> Iterator[Client]:
    with Client(Router([write_route(Receiver(store))])) as client:
        yield client


def body(*values: float, at: int = NOW) -> bytes:
    labels = encode_labels([("__name__", "m"), ("instance", "a")])
    samples = [(labels, at + n, value) for n, value in enumerate(values)]
    return bytes(cramjam.snappy.compress_raw(encode_samples(samples)))


def post(client: Client, content: bytes, **headers: str) -> tuple[int, str]:
    every = {"content-type": "application/x-protobuf", "content-encoding": "snappy"}
    every |= {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.post("/api/v1/write", content=content, headers=every)
    return answer.status_code, answer.text


def test_kept(client: Client, store: Store) -> None:
    assert post(client, body(1, 2)) == (204, "")
    assert post(client, body()) == (204, "")
    assert store.stats().samples == 2


def test_refused_samples_are_400_and_the_others_kept(client: Client, store: Store) -> None:
    post(client, body(1))
    code, text = post(client, body(5, 6))
    assert code == 400
    assert text.startswith("1 samples kept; refused: 1 another value")
    assert store.stats().samples == 2


def test_nonsense_is_400(client: Client) -> None:
    assert post(client, b"nonsense")[0] == 400
    assert post(client, bytes(cramjam.snappy.compress_raw(b"nonsense")))[0] == 400


def test_other_kinds_are_415(client: Client) -> None:
    assert (
        post(client, body(1), content_type="application/x-protobuf;proto=io.prometheus.write.v2.Request")[0]
        == 415
    )
    assert post(client, body(1), content_type="application/json")[0] == 415
    assert post(client, body(1), content_type="")[0] == 415
    assert post(client, body(1), content_encoding="gzip")[0] == 415
    assert post(client, body(1), content_type="application/x-protobuf;proto=prometheus.WriteRequest")[0] == 204


def test_too_large_is_413(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_write, "MOST_PACKED_BYTES", 10)
    assert post(client, body(1))[0] == 413


def test_a_store_that_cannot_write_is_503(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tick: Any) -> Any:
        raise StoreFullError("the disk is full")

    monkeypatch.setattr(store, "submit", full)
    code, text = post(client, body(1))
    assert (code, text.strip()) == (503, "not stored: the disk is full")


def test_only_post(client: Client) -> None:
    assert client.get("/api/v1/write").status_code == 405
