from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from gpuscope.history.remote_write.receiver import Receiver
from gpuscope.history.store import Store, StoreFullError, StoreOptions
from gpuscope.serve.api.write_route import write_route
from gpuscope.serve.http.messages import Request, Response, Route, Router
from gpuscope.serve.login.access_rules import ClientRole
from gpuscope.serve.login.authenticator import ClientIdentity
from gpuscope.serve.login.routes import IDENTITY_KEY
from tests.remote_write.write_v2 import SeriesV2, encode_v2, packed
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


def test_a_bound_token_gets_400_for_another_node(store: Store) -> None:
    """Whose token it is, the access policy has found out."""
    receiver = Receiver(store)
    route = write_route(receiver)

    async def write(request: Request) -> Response:
        identity = ClientIdentity("t", "token", ClientRole.VIEWER, only_remote_write=True, node="b")
        request.state[IDENTITY_KEY] = identity
        return await route.handler(request)

    with Client(Router([Route("/api/v1/write", write, ("POST",))])) as client:
        code, text = post(client, body(1))
    assert code == 400
    assert text.startswith("this API token is bound to a node: the label instance must be its name")
    assert dict(receiver.refused) == {"other_node": 1}
    assert store.stats().samples == 0


def test_refused_samples_are_400_and_the_others_kept(client: Client, store: Store) -> None:
    post(client, body(1))
    code, text = post(client, body(5, 6))
    assert code == 400
    assert text.startswith("duplicate sample for timestamp: another value")
    assert text.endswith("(1 refused); 1 samples kept\n")
    assert store.stats().samples == 2


def test_nonsense_is_400(client: Client) -> None:
    assert post(client, b"nonsense")[0] == 400
    assert post(client, bytes(cramjam.snappy.compress_raw(b"nonsense")))[0] == 400


V2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"


def post_v2(client: Client, *series: SeriesV2) -> tuple[int, str, tuple[str, str, str]]:
    headers = {"content-type": V2, "content-encoding": "snappy", "x-prometheus-remote-write-version": "2.0.0"}
    answer = client.post("/api/v1/write", content=packed(encode_v2(*series)), headers=headers)
    names = ("samples", "histograms", "exemplars")
    written = [answer.headers.get(f"x-prometheus-remote-write-{name}-written", "") for name in names]
    return answer.status_code, answer.text, (written[0], written[1], written[2])


def test_version_2(client: Client, store: Store) -> None:
    good = SeriesV2([("__name__", "m"), ("instance", "a")], [(NOW, 1.0), (NOW + 1, 2.0)], exemplars=1)
    assert post_v2(client, good) == (204, "", ("2", "0", "0"))
    assert post_v2(client, good) == (204, "", ("2", "0", "0"))
    assert store.stats().samples == 2
    assert post_v2(client) == (204, "", ("0", "0", "0"))


def test_version_2_keeps_the_good_part_of_a_request(client: Client, store: Store) -> None:
    good = SeriesV2([("__name__", "m")], [(NOW, 1.0)])
    code, text, written = post_v2(
        client,
        good,
        SeriesV2([("__name__", "h")], histograms=2),
        SeriesV2([("job", "nameless")], [(NOW, 1.0)]),
        SeriesV2([("__name__", "twice"), ("a", "1"), ("a", "2")], [(NOW, 1.0)]),
    )
    assert (code, written) == (400, ("1", "0", "0"))
    assert "native histograms are not stored here (2 refused)" in text
    assert "invalid metric name or labels (2 refused)" in text
    assert store.stats().samples == 1


def test_version_2_nonsense(client: Client) -> None:
    for content in (b"nonsense", packed(b"nonsense"), packed(b"\x2a\x04\x0a\x02\x00\x01")):
        answer = client.post("/api/v1/write", content=content, headers={"content-type": V2})
        assert answer.status_code == 400
        assert answer.headers["x-prometheus-remote-write-samples-written"] == "0"


def test_new_series_beyond_the_limit(tmp_path: Path) -> None:
    with Store(tmp_path / "full", StoreOptions(max_series=1)) as store:
        store.start()
        with Client(Router([write_route(Receiver(store))])) as client:
            first = SeriesV2([("__name__", "m")], [(NOW, 1.0)])
            other = SeriesV2([("__name__", "n")], [(NOW, 1.0)])
            assert post_v2(client, first)[0] == 204
            code, text, written = post_v2(client, SeriesV2(first.labels, [(NOW + 1, 2.0)]), other)
            assert (code, written[0]) == (400, "1")
            assert text == (
                "new series: the store has reached its limit of 1 series (max_series) (1 refused); "
                "1 samples kept\n"
            )


def test_other_kinds_are_415(client: Client) -> None:
    assert (
        post(client, body(1), content_type="application/x-protobuf;proto=io.prometheus.write.v3.Request")[0]
        == 415
    )
    assert post(client, body(1), content_type="application/x-protobuf-other")[0] == 415
    assert post(client, body(1), content_type="application/json")[0] == 415
    assert post(client, body(1), content_type="")[0] == 415
    assert post(client, body(1), content_encoding="gzip")[0] == 415
    assert post(client, body(1), content_type="application/x-protobuf;proto=prometheus.WriteRequest")[0] == 204


def test_too_large(store: Store) -> None:
    before = LIMITS_REACHED.counts()
    limits = Limits(write_max_request_bytes=60, write_max_decoded_bytes=100)
    with Client(Router([write_route(Receiver(store, server_limits=limits))])) as client:
        assert post(client, body(1))[0] == 204
        assert post(client, body(*range(2, 20)))[0] == 413
        bomb = bytes(cramjam.snappy.compress_raw(bytes(1000)))
        code, text = post(client, bomb)
        assert (code, "write_max_decoded_bytes" in text) == (400, True)
    after = LIMITS_REACHED.counts()
    assert after["write_max_request_bytes"] == before["write_max_request_bytes"] + 1
    assert after["write_max_decoded_bytes"] == before["write_max_decoded_bytes"] + 1


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
