from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.base.limits import Limits
from gpuscope.base.varint import WireError, encode_varint
from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from gpuscope.history.remote_write.receiver import Receiver, unpack
from gpuscope.history.scrape.target_appender import STALE, Report, TargetAppender
from gpuscope.history.store import Store
from gpuscope.history.store.tick import is_verified, scrape_target_name
from gpuscope.model.series import Matcher, MatchOp
from tests.examples import examples
from tests.scrape.test_ingest import is_stale

NOW = time.time_ns() // 1_000_000 - 60_000
LIMIT = 32 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data") as store:
        store.start()
        yield store


def request(*samples: tuple[dict[str, str], int, float]) -> bytes:
    body = encode_samples((encode_labels(labels.items()), NOW + at, value) for labels, at, value in samples)
    return bytes(cramjam.snappy.compress_raw(body))


def metric(name: str, **labels: str) -> dict[str, str]:
    return {"__name__": name, **labels}


def values(store: Store, name: str) -> dict[str, list[tuple[int, float]]]:
    found = store.select([Matcher("__name__", MatchOp.EQUAL, name)], 0, NOW + 10**7)
    return {
        dict(one.labels).get("instance", ""): list(
            zip((one.timestamps - NOW).tolist(), one.values.tolist(), strict=True)
        )
        for one in found
    }


def test_samples_of_many_targets_and_times(store: Store) -> None:
    receiver = Receiver(store)
    a, b = metric("m", job="j", instance="a"), metric("m", job="j", instance="b")
    received = receiver.take(request((a, 0, 1), (b, 7, 2), (a, 15, 3), (metric("alone"), 0, 0)), "10.0.0.1")
    assert (received.accepted, received.refused) == (4, {})
    receiver.take(request((a, 30, 4), (b, 22, STALE)), "10.0.0.1")
    found = values(store, "m")
    assert found["a"] == [(0, 1.0), (15, 3.0), (30, 4.0)]
    assert found["b"][0] == (7, 2.0)
    assert is_stale(found["b"][1][1])
    assert values(store, "alone") == {"": [(0, 0.0)]}


def test_out_of_order_is_taken_the_same_again_is_harmless_another_value_is_refused(store: Store) -> None:
    receiver = Receiver(store)
    a = metric("m", instance="a")
    receiver.take(request((a, 30, 1)), "x")
    assert receiver.take(request((a, 15, 2)), "x").accepted == 1
    again = receiver.take(request((a, 30, 1)), "x")
    assert (again.accepted, again.repeated, again.refused) == (0, 1, {})
    other = receiver.take(request((a, 30, 9), (a, 45, 3)), "x")
    assert (other.accepted, other.refused) == (1, {"duplicate": 1})
    future = receiver.take(request((a, 10**8, 1)), "x")
    assert future.refused == {"in_future": 1}
    assert values(store, "m")["a"] == [(15, 2.0), (30, 1.0), (45, 3.0)]


def test_labels_that_cannot_be_stored(store: Store) -> None:
    receiver = Receiver(store, Limits(write_max_labels=3, write_max_label_value_bytes=10))
    nameless = {"job": "j"}
    long, many = metric("m", a="x" * 11), metric("m", a="1", b="2", c="3")
    received = receiver.take(request((nameless, 0, 1), (long, 0, 1), (many, 0, 1), (metric("ok"), 0, 1)), "x")
    assert (received.accepted, received.refused) == (1, {"invalid_labels": 1, "label_limits": 2})
    twice = encode_labels([("__name__", "m")]) + encode_labels([("a", "1")]) + encode_labels([("a", "2")])
    body = bytes(cramjam.snappy.compress_raw(encode_samples([(twice, NOW, 1.0)])))
    assert receiver.take(body, "x").refused == {"invalid_labels": 1}


def test_a_bound_token_writes_its_own_node_only(store: Store) -> None:
    receiver = Receiver(store)
    own, port = metric("m", job="j", instance="node7"), metric("m", job="j", instance="node7:9400")
    names = ("node70", "node7:x", "node7.evil", "", "n:node7")
    others = [metric("m", job="j", instance=name) for name in names]
    assert receiver.take(request((others[0], 0, 1)), "x").accepted == 1, "its token is not bound"
    body = request((own, 0, 1), (port, 0, 1), *((other, 1, 1) for other in others), (metric("m"), 1, 1))
    received = receiver.take(body, "x", node="node7")
    assert (received.accepted, received.refused) == (2, {"other_node": 6})
    assert receiver.refused["other_node"] == 6
    assert store.is_verified(own)
    assert store.is_verified(port)
    assert not store.is_verified(others[0])


def test_a_target_that_is_scraped_here_has_no_other_writer(store: Store) -> None:
    """Samples up to ten minutes ahead of the scrape's would be what queries see."""
    receiver = Receiver(store)
    idle = metric("idle", job="gpu", instance="node7:9400")
    first = receiver.take(request((metric("other", job="gpu", instance="node7:9400"), 0, 1)), "x")
    assert first.accepted == 1
    labels = {"job": "gpu", "instance": "node7:9400"}
    name = scrape_target_name(tuple(labels.items())[::-1], "http://node7:9400/metrics")
    appender = TargetAppender(store, name, labels)
    series = appender.series_id(tuple(sorted(idle.items())))
    appender.submit(NOW, [series], [0.0], Report(True, 0.1)).result()
    received = receiver.take(request((idle, 300_000, 9_000), (metric("other", **labels), 1, 1)), "x")
    assert (received.accepted, received.refused) == (0, {"scraped_here": 2})
    assert values(store, "idle") == {"node7:9400": [(0, 0.0)]}
    assert store.is_verified(idle)
    appender.close(NOW + 1)  # removed from the configuration: the node may push from now on
    assert receiver.take(request((idle, 300_000, 9_000)), "x").accepted == 1
    assert not store.is_verified(idle), "somebody else has written it"


@pytest.mark.parametrize(
    ("writers", "verified"),
    [
        (["scrape instance=n1:9400 job=gpu http://n1:9400/metrics"], True),
        (["scrape instance=gateway:9091 job=push http://gateway:9091/metrics"], False),  # honor_labels
        (["local gpuscope n1:9400"], True),
        (["remote write node=n1 job=gpu instance=n1:9400"], True),
        (["remote write job=gpu instance=n1:9400"], False),
        (["local gpuscope n1:9400", "remote write 10.0.0.1 gpu"], False),
        (["rule gpu instance=n1:9400"], False),
        ([], False),
    ],
)
def test_who_wrote_a_series(writers: list[str], verified: bool) -> None:
    assert is_verified({"__name__": "m", "instance": "n1:9400"}, writers) is verified
    assert not is_verified({"__name__": "m"}, writers)


def test_series_that_were_removed_come_back(store: Store) -> None:
    receiver = Receiver(store)
    a = metric("m", instance="a")
    receiver.take(request((a, 0, 1)), "x")
    store.delete_series([Matcher("__name__", MatchOp.EQUAL, "m")])
    assert receiver.take(request((a, 15, 2)), "x").accepted == 1


def test_a_packed_size_that_lies_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(WireError, match="uncompressed"):
        unpack(encode_varint(1 << 31) + b"\x00", LIMIT)
    with pytest.raises(WireError, match="snappy"):
        unpack(b"\x05\xff\xff\xff", LIMIT)
    with pytest.raises(WireError, match="snappy"):
        unpack(b"", LIMIT)


def test_several_senders_at_once(store: Store) -> None:
    receiver = Receiver(store)

    def send(number: int) -> None:
        for step in range(20):
            receiver.take(request(*((metric(f"m{n}", instance=str(number)), step, n) for n in range(50))), "x")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert receiver.accepted == 4 * 20 * 50
    assert len(values(store, "m7")) == 4
    assert all(len(rows) == 20 for rows in values(store, "m7").values())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes(store: Store, noise: bytes, packed: bool) -> None:
    body = bytes(cramjam.snappy.compress_raw(noise)) if packed else noise
    try:
        received = Receiver(store).take(body, "x")
    except WireError:
        return
    assert received.accepted >= 0
