"""Remote write that catches up, sent to a real Prometheus and to us with the same out_of_order_time_window.

What must hold: every sample that Prometheus keeps is kept here, with its value; what it answers with 204 is
answered so here; what is refused here is refused there too. We may keep more: Prometheus with a window of 0
refuses a sample that is older than its series' last one.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from gpuscope.history.remote_write.receiver import Receiver
from gpuscope.history.store import Store, StoreOptions
from gpuscope.model.series import Matcher, MatchOp
from gpuscope.serve.api.write_route import write_route
from gpuscope.serve.http.messages import Router
from tests.engines import running_prometheus
from tests.examples import examples
from tests.integration_api.servers import ask, running_gpuscope
from tests.remote_write.write_v2 import SeriesV2, encode_v2, packed
from tests.server.client import Client

MINUTE = 60_000
HOUR = 60 * MINUTE
HEADERS = {
    "content-type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "content-encoding": "snappy",
    "x-prometheus-remote-write-version": "2.0.0",
}
LABELS = (("__name__", "m"), ("instance", "a"))
Sent = tuple[str, int, float]
"""Metric name, time, value."""


@dataclass
class Pair:
    """The same requests to both."""

    prometheus: str
    client: Client
    store: Store
    start: int
    newest: int
    number: int = 0
    sent: list[Sent] = field(default_factory=list)

    def send(self, *samples: Sent) -> tuple[int, str, int, str]:
        """Both answers; asserts what must hold of them."""
        by_name: dict[str, list[tuple[int, float]]] = {}
        for name, at, value in samples:
            by_name.setdefault(name, []).append((at, value))
        labels = {name: (("__name__", name), ("instance", "a"), ("job", "j")) for name in by_name}
        body = packed(encode_v2(*(SeriesV2(labels[name], rows) for name, rows in by_name.items())))
        theirs = self._to_prometheus(body)
        answer = self.client.post("/api/v1/write", content=body, headers=HEADERS)
        ours = (answer.status_code, answer.text)
        assert {theirs[0], ours[0]} <= {204, 400}, (theirs, ours)
        assert theirs[0] == 400 or ours[0] == 204, f"Prometheus took it, we did not: {ours[1]}"
        self.sent += samples
        self.newest = max(self.newest, *(at for _, at, _ in samples))
        return *theirs, *ours

    def _to_prometheus(self, body: bytes) -> tuple[int, str]:
        request = urllib.request.Request(f"{self.prometheus}/api/v1/write", body, HEADERS)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def kept_there(self, prefix: str) -> dict[tuple[str, int], float]:
        seconds = (self.newest - self.start) // 1000 + 3600 * 10
        query = urllib.parse.urlencode(
            {"query": f'{{__name__=~"{prefix}.*"}}[{seconds}s]', "time": self.newest / 1000 + 60}
        )
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/query?{query}", timeout=60) as answer:
            found = json.load(answer)["data"]["result"]
        return {
            (one["metric"]["__name__"], round(at * 1000)): float(value)
            for one in found
            for at, value in one["values"]
        }

    def kept_here(self, prefix: str) -> dict[tuple[str, int], float]:
        found = self.store.select([Matcher("__name__", MatchOp.REGEX, f"{prefix}.*")], 0, 2**62)
        return {
            (dict(one.labels)["__name__"], at): value
            for one in found
            for at, value in zip(one.timestamps.tolist(), one.values.tolist(), strict=True)
        }

    def compare(self, prefix: str) -> None:
        theirs, ours = self.kept_there(prefix), self.kept_here(prefix)
        missing = theirs.keys() - ours.keys()
        assert not missing, f"{len(missing)} of {len(theirs)} samples that Prometheus keeps are missing"
        values: dict[tuple[str, int], set[float]] = {}
        for name, at, value in self.sent:
            values.setdefault((name, at), set()).add(value)
        for key, value in ours.items():
            # Of two values for one time Prometheus keeps one or the other out of order; we keep the first.
            assert value in values[key]
            assert len(values[key]) > 1 or theirs.get(key, value) == value


@pytest.fixture(scope="module", params=["0s", "6h"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    window = request.param
    folder: Path = tmp_path_factory.mktemp("late")
    options = StoreOptions(out_of_order_ms={"0s": 0, "6h": 6 * HOUR}[window])
    now = time.time_ns() // 1_000_000
    with (
        running_prometheus(f"storage: {{tsdb: {{out_of_order_time_window: {window}}}}}\n") as prometheus,
        Store(folder / "data", options) as store,
    ):
        store.start()
        with Client(Router([write_route(Receiver(store))])) as client:
            yield Pair(prometheus, client, store, now - 16 * HOUR, now - 16 * HOUR)


def catch_up(pair: Pair, behind: int, hours: float) -> tuple[int, str]:
    """Two shards of one instance; returns how many samples of the second Prometheus refused, and its word."""
    pair.number += 1
    prefix, start = f"s{pair.number}_", pair.newest + MINUTE
    refused, why = 0, ""
    for step, at in enumerate(range(start, start + int(hours * HOUR), MINUTE)):
        assert pair.send((f"{prefix}ahead", at, float(step)))[0] == 204
        if at - behind >= start:
            status, text, _, _ = pair.send((f"{prefix}behind", at - behind, float(step)))
            if status != 204:
                refused, why = refused + 1, text
        if step % 30 == 29:
            pair.store.seal()
    pair.compare(prefix)
    return refused, why


def test_two_shards_twenty_minutes_apart(pair: Pair) -> None:
    assert catch_up(pair, 20 * MINUTE, 1.5) == (0, "")


def test_two_shards_hours_apart(pair: Pair) -> None:
    refused, why = catch_up(pair, 150 * MINUTE, 3.5)
    if pair.store.out_of_order_ms:
        assert refused == 0
    else:
        assert why.startswith("out of bounds")


def test_answers_to_what_neither_takes(pair: Pair) -> None:
    at = pair.newest + MINUTE
    pair.send(("t_a", at, 1.0), ("t_b", at, 1.0))
    pair.store.seal()
    *_, status, text = pair.send(("t_a", at, 1.0))
    assert (status, text) == (204, "")
    for samples, words in (
        (
            [("t_c", time.time_ns() // 1_000_000 + HOUR, 1.0)],
            "out of bounds: timestamp is too far in the future",
        ),
        ([("t_a", at - 7 * HOUR, 1.0)], "too old sample" if pair.store.out_of_order_ms else "out of bounds"),
    ):
        newest = pair.newest
        theirs, said, ours, text = pair.send(*samples)
        pair.newest = newest
        assert (theirs, ours) == (400, 400)
        assert said.startswith(words), said
        assert text.startswith(words), text
    pair.send(("t_d", at + 1, 1.0))
    theirs, said, ours, text = pair.send(("t_d", at + 1, 2.0))
    assert (theirs, ours) == (400, 400)
    assert said.startswith("duplicate sample for timestamp")
    assert text.startswith("duplicate sample for timestamp")
    pair.compare("t_")


def test_the_setting_in_prometheus_yml(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text("storage: {tsdb: {out_of_order_time_window: 6h}}\n")
    now = time.time_ns() // 1_000_000

    def send(url: str, name: str, at: int) -> int:
        body = packed(encode_v2(SeriesV2([("__name__", name), ("instance", "a")], [(at, 1.0)])))
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, HEADERS), timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    with Store(tmp_path / "data") as store:  # sealed up to now, so that all that follows is late
        Receiver(store).take(packed(encode_samples([(encode_labels(LABELS), now, 1.0)])), "x")
        store.seal()
    with running_gpuscope(tmp_path / "data", "--config", config) as ours:
        assert send(f"{ours}/api/v1/write", "m", now - 5 * HOUR) == 204
        assert send(f"{ours}/api/v1/write", "m", now - 7 * HOUR) == 400
        found = ask(ours, "/api/v1/query", {"query": "count_over_time(m[8h])", "time": now / 1000})
        assert found.body["data"]["result"][0]["value"][1] == "2"


samples = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 100), st.integers(1, 3)),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one[:2],
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.integers(1, 5)),
        st.tuples(st.just("send"), samples),
        st.tuples(st.just("send"), samples),
        st.tuples(st.sampled_from(["seal", "maintain"])),
    ),
    min_size=2,
    max_size=12,
)


@given(steps)
@settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_interleaving(pair: Pair, chosen: list[tuple]) -> None:  # type: ignore[type-arg]
    pair.number += 1
    prefix = f"r{pair.number}_"
    for step in chosen:
        match step:
            case ("move", minutes):
                pair.send((f"{prefix}lead", pair.newest + minutes * MINUTE, 1.0))
            case ("send", rows):
                newest = pair.newest
                _, _, ours, text = pair.send(
                    *(
                        (f"{prefix}{series}", newest - late * MINUTE, float(value))
                        for series, late, value in rows
                    )
                )
                assert ours == 204 or text
            case ("seal",):
                pair.store.seal()
            case ("maintain",):
                pair.store.maintain()
    pair.compare(prefix)
