"""Loads on simulated GPUs: what the route accepts, what the readings show, and what the command compares."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from gpuscope.base.settings import Settings
from gpuscope.demo import DemoFleet, DemoSource
from gpuscope.demo.demo_routes import demo_routes
from gpuscope.demo.simulated_load import COPY_DIRECTIONS, LOAD_PROFILES, MAX_LOADS
from gpuscope.model.readings import ABSENT, Device
from gpuscope.serve.http.messages import Request, RequestBody, Response
from gpuscope.vendors.nvidia.load.comparison import follow_demo_load, loaded_gpus
from gpuscope.vendors.nvidia.load.device_process import DeviceLoad
from gpuscope.vendors.nvidia.load.kinds import KINDS, TENSOR
from gpuscope.vendors.nvidia.load.load_table import agrees
from gpuscope.vendors.nvidia.nvidia_values import own

BEGAN_AT = 1_790_000_000.0


@dataclass
class Clock:
    time: float = BEGAN_AT

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet() -> DemoFleet:
    return DemoFleet(Settings(source="demo"), started_at=BEGAN_AT, nodes=2)


def post(fleet: DemoFleet, clock: Clock, body: object) -> tuple[int, Any]:
    (route,) = demo_routes(fleet, clock)
    content = RequestBody()
    content.add(body if isinstance(body, bytes) else orjson.dumps(body))
    content.end()
    request = Request("POST", route.path, [], b"", route.path.encode(), "", False, content)

    async def answer() -> Response:
        return await route.handler(request)

    response = asyncio.run(answer())
    return response.status, orjson.loads(response.body)


def gpu(source: DemoSource, index: int) -> Device:
    return source.read(frozenset()).devices[index]


def test_the_load_is_added_to_what_the_gpu_does(fleet: DemoFleet, clock: Clock) -> None:
    source, plain = DemoSource(fleet, 0, clock.now), DemoSource(fleet, 0, clock.now)
    status, answer = post(fleet, clock, {"gpus": [3], "target": 0.6, "seconds": 30, "kind": "fp32"})
    assert (status, answer["node"], [one["gpu"] for one in answer["gpus"]]) == (200, "gpu-a01", ["3"])
    busy = -1.0
    for second in range(60):
        clock.time += 1
        loaded, alone = gpu(source, 3), plain.read_at(clock.time, clock.time - 1).devices[3]
        assert loaded.utilization_ratio is not ABSENT
        assert alone.utilization_ratio is not ABSENT
        expected = alone.utilization_ratio + (1 - alone.utilization_ratio) * (0.6 if second < 29 else 0.0)
        assert loaded.utilization_ratio == pytest.approx(expected)
        assert loaded.busy_seconds is ABSENT or loaded.busy_seconds >= busy, "a counter never goes back"
        busy = 0.0 if loaded.busy_seconds is ABSENT else loaded.busy_seconds
        pids = [one.pid for one in source.read(frozenset()).processes if one.owner.user == "demo"]  # type: ignore[union-attr]
        assert len(pids) == (1 if second < 29 else 0)


def test_other_gpus_and_nodes_are_not_touched(fleet: DemoFleet, clock: Clock) -> None:
    post(fleet, clock, {"gpus": [3], "node": "gpu-a02"})
    clock.time += 1
    first, second = DemoSource(fleet, 0, clock.now), DemoSource(fleet, 1, clock.now)
    assert first.read(frozenset()) == first.read_at(clock.time, BEGAN_AT)
    assert gpu(second, 2).utilization_ratio == second.read_at(clock.time, BEGAN_AT).devices[2].utilization_ratio


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the body is not JSON"),
        ([1], "the body is not a JSON object"),
        ({"gpu": 1}, "unknown key 'gpu'"),
        ({"gpus": [99]}, "there is no whole GPU '99'"),
        ({"gpus": "0"}, "gpus is not a list"),
        ({"node": "nope"}, "there is no node 'nope'"),
        ({"kind": "nvlink"}, "'nvlink' is not a kind of simulated load"),
        ({"kind": 4}, "kind is not a text"),
        ({"target": True}, "target is not a number"),
        ({"target": 1.5}, "a target above 0 and up to 1"),
        ({"seconds": 1e9}, "lasts at most a day"),
    ],
)
def test_a_wrong_request_is_one_sentence(fleet: DemoFleet, clock: Clock, body: object, sentence: str) -> None:
    status, answer = post(fleet, clock, body)
    assert status == 400
    assert sentence in answer["error"]


def test_the_number_of_loads_is_limited(fleet: DemoFleet, clock: Clock) -> None:
    for _ in range(MAX_LOADS):
        assert post(fleet, clock, {"seconds": 10})[0] == 200
    status, answer = post(fleet, clock, {"seconds": 10})
    assert (status, "64 simulated loads are running" in answer["error"]) == (400, True)
    clock.time += 11
    assert post(fleet, clock, {"seconds": 10})[0] == 200


def test_every_simulated_kind_is_a_kind_of_load() -> None:
    assert set(LOAD_PROFILES) | set(COPY_DIRECTIONS) <= set(KINDS)


def read_mapping(device: Device, name: str) -> Mapping[str, float]:
    mapping: Mapping[str, float] = getattr(device, name, None) or getattr(own(device), name)
    return mapping


def test_copies_show_as_pcie_traffic_and_not_as_work(fleet: DemoFleet, clock: Clock) -> None:
    status, answer = post(fleet, clock, {"gpus": [3], "kind": "pcie-rx", "target": 0.5, "seconds": 30})
    assert status == 200
    promised = answer["gpus"][0]["bytes_per_second"]
    clock.time += 1
    source = DemoSource(fleet, 0, clock.now)
    loaded, alone = gpu(source, 3), source.read_at(clock.time, clock.time - 1).devices[3]
    for name in ("pcie_bytes_per_second", "profiled_pcie_bytes_per_second"):
        now, before = read_mapping(loaded, name), read_mapping(alone, name)
        assert now["rx"] == pytest.approx(before["rx"] + promised)
        assert now["tx"] == before["tx"]
    assert loaded.utilization_ratio == alone.utilization_ratio


@pytest.mark.parametrize(("shown", "is_right"), [(20e9, True), (9e9, True), (7e9, False), (None, True)])
def test_the_command_compares_copied_bytes_with_the_stored_traffic(
    clock: Clock, shown: float | None, is_right: bool
) -> None:
    """At least 8 of 10 GB/s; more may be another's. What is not reported is no disagreement."""
    labels = {"__name__": "gpuscope_gpu_profiled_pcie_bytes_per_second", "uuid": "GPU-1", "direction": "tx"}
    result = [] if shown is None else [{"metric": labels, "value": [0, str(shown)]}]

    def wait(seconds: float) -> None:
        clock.time += seconds

    gpus = loaded_gpus({"gpus": [{"gpu": "0", "uuid": "GPU-1", "bytes_per_second": 10e9}]})
    load = DeviceLoad(kind="pcie-tx", duration=12, target=1.0)
    live = {"gpus": [{"uuid": "GPU-1", "tensor": 0.0}]}
    follow_demo_load(
        gpus, load, lambda: live, lambda: {"data": {"result": result}}, lambda *_: None, wait, clock.monotonic
    )
    assert agrees(gpus, KINDS["pcie-tx"]) is is_right


def test_the_command_compares_what_the_live_view_shows(clock: Clock) -> None:
    def live(tensor: float) -> Any:
        return {
            "gpus": [{"uuid": "GPU-1", "busy": 0.7, "sm": 0.68, "tensor": tensor, "dram": 0.1, "power": 400}]
        }

    def wait(seconds: float) -> None:
        clock.time += seconds

    def follow(tensor: float) -> bool:
        gpus = loaded_gpus(
            {"node": "a", "gpus": [{"gpu": "0", "uuid": "GPU-1", "model": "H100"}], "ends_at": 1}
        )
        load = DeviceLoad(kind="tensor", duration=10, target=0.6)
        no_traffic: Any = None
        follow_demo_load(
            gpus, load, lambda: live(tensor), lambda: no_traffic, lambda *_: None, wait, clock.monotonic
        )
        assert len(gpus[0].samples) == 10
        return agrees(gpus, TENSOR)

    assert follow(tensor=0.4)
    assert not follow(tensor=0.0), "the tensor cores did not move"
