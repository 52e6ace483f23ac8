"""The live picture's samples from the store equal those that an engine's queries give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from gpuscope.cli.terminal.fleet_lines import note_lines
from gpuscope.cli.terminal.fleet_view import to_fleet_view
from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.history.store.tick import node_target_name, remote_target_name, scrape_target_name
from gpuscope.judge.checks.facts import NOTHING_MISSING, Sample
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.fleet_samples import NEEDED_VALUES, FleetSamples
from gpuscope.serve.live.picture import live_picture
from gpuscope.serve.live.stored_samples import EngineSamples, StoreSamples
from tests.health.fleets import NOW, gpu, node, of_gpu, process

NOW_MS = 2_000_000_000


class StoreClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic_ms(self) -> int:
        return self.now_ms()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, StoreOptions(), StoreClock()) as opened:
        opened.start()
        yield opened


def append(store: Store, target: str, samples: list[Sample], at_ms: int = NOW_MS - 1000) -> None:
    sets = [tuple(sorted({"__name__": name, **labels}.items())) for name, labels, _ in samples]
    number = store.target(target)
    store.append(Tick(number, at_ms, store.resolve(number, sets), np.array([value for _, _, value in samples])))


def contents(found: FleetSamples) -> dict[str, set[tuple[str, frozenset[tuple[str, str]], float]]]:
    return {
        instance: {
            (name, frozenset(labels.items() - {("__name__", name)}), value) for name, labels, value in samples
        }
        for instance, samples in found.items()
    }


def test_they_are_those_of_the_engine(store: Store) -> None:
    for name in ("n1", "n2"):
        throttled = of_gpu("0", "throttle_reason", float(name == "n2"), name, reason="hw_thermal")
        limit = of_gpu("0", "power_limit_watts", 700.0, name, limit="enforced")
        other: Sample = ("node_network_receive_bytes_total", {"instance": f"{name}:9400"}, 5.0)
        append(store, name, [*node(name), *gpu("0", name), *process("0", name=name), throttled, limit, other])

    class AtNow(EmbeddedEngine):
        async def instant(self, expression, at_ms=None, **more):  # type: ignore[no-untyped-def]
            return await super().instant(expression, NOW_MS)

    asked = asyncio.run(EngineSamples(AtNow(store, Engine(store))).read())()
    assert contents(StoreSamples(store, lambda: NOW_MS).samples()) == contents(asked)
    assert len(asked) == 2


def test_values_that_neither_checks_nor_page_use_are_left_out(store: Store) -> None:
    assert "gpuscope_gpu_power_limit_watts" in NEEDED_VALUES
    append(store, "n1", [*node(), of_gpu("0", "power_limit_watts", 100.0, limit="min")])
    (samples,) = StoreSamples(store, lambda: NOW_MS).samples().values()
    assert {name for name, _, _ in samples} == {name for name, _, _ in node()}


def test_a_target_of_several_nodes_is_split_and_a_node_of_several_targets_joined(store: Store) -> None:
    append(store, "remote", [*node("n1"), *node("n2")])
    append(store, "other", gpu("0", "n1"))
    samples = StoreSamples(store, lambda: NOW_MS)
    found = samples.samples()
    assert {instance: len(some) for instance, some in found.items()} == {
        "n1:9400": len(node()) + len(gpu("0")),
        "n2:9400": len(node()),
    }
    append(store, "other", gpu("0", "n1", up=0.0), NOW_MS - 500)
    later = samples.samples()
    assert later["n2:9400"] is found["n2:9400"]
    assert contents(later)["n1:9400"] != contents(found)["n1:9400"]


def test_a_series_of_two_targets_is_there_once(store: Store) -> None:
    append(store, "a", node("n1", at=1.0), NOW_MS - 2000)
    append(store, "b", node("n1", at=2.0), NOW_MS - 1000)
    (samples,) = StoreSamples(store, lambda: NOW_MS).samples().values()
    assert len(samples) == len(node())
    assert 2.0 in {value for _, _, value in samples}


def test_a_remote_writer_does_not_take_the_picture_away(store: Store) -> None:
    """Its nodes, GPUs and processes come after those that this server reads or whose tokens are bound."""
    flood = [
        *node("a0"),
        *gpu("0", "a0"),
        *(one for pid in range(50) for one in process("0", str(pid), name="a0")),
    ]
    append(store, remote_target_name("somebody", "j", "a0:9400"), flood)
    append(store, remote_target_name("somebody", "j", "a1:9400"), [*node("a1"), *gpu("0", "a1")])
    # In the name of a node that is scraped: more GPUs, and another job that the scrape does not know.
    more = [one for index in range(1, 60) for one in gpu(str(index), "n1")]
    more = [(name, {**labels, "job": "other"}, value) for name, labels, value in (*node("n1", at=1.0), *more)]
    append(store, remote_target_name("somebody", "other", "n1:9400"), more)
    scraped = scrape_target_name((("instance", "n1:9400"), ("job", "gpuscope")), "http://n1:9400/metrics")
    append(store, scraped, [*node("n1"), *gpu("0", "n1")])
    append(store, node_target_name("n2", "gpuscope", "n2:9400"), [*node("n2"), *gpu("0", "n2")])

    found = StoreSamples(store, lambda: NOW_MS).samples()
    assert list(found) == ["n1:9400", "n2:9400", "a0:9400", "a1:9400"]
    judged = FleetJudge(max_subjects=10).judge(found, NOTHING_MISSING, NOW)
    assert (list(judged.nodes), judged.left_out) == (["n1:9400", "n2:9400", "a1:9400"], 1)
    picture = live_picture(judged, "store")
    assert [(row["name"], len([one for one in picture["gpus"] if one["node"] == row["name"]]))
            for row in picture["nodes"]] == [("a1", 1), ("n1", 1), ("n2", 1)]  # fmt: skip
    assert picture["left_out"] == 1
    lines = note_lines(to_fleet_view(orjson.loads(orjson.dumps(picture))))
    sentence = "1 node is not shown and not counted: the server has more than live_max_subjects allows"
    assert [line[0].text for line in lines] == [sentence]


def test_what_is_pushed_is_joined_where_the_server_reads_no_agent(store: Store) -> None:
    """A node exporter that is scraped, and an agent that pushes, under one instance."""
    scraped = scrape_target_name((("instance", "n1:9400"), ("job", "node")), "http://n1:9400/metrics")
    append(store, scraped, [("node_load1", {"instance": "n1:9400"}, 1.5)])
    append(store, remote_target_name("somebody", "j", "n1:9400"), [*node("n1"), *gpu("0", "n1")])
    (samples,) = StoreSamples(store, lambda: NOW_MS).samples().values()
    assert len(samples) == 1 + len(node()) + len(gpu("0"))
