"""`POST /api/demo/load`: puts a load on the simulated GPUs of a demo, for `gpuscope load --simulate`.

The body is JSON: kind, seconds, target (0 to 1), node (default: the first), gpus (indices; default: all),
memory_bytes. A mistake is one sentence with status 400. A real server has no such route.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from gpuscope.base.clock import Clock
from gpuscope.base.errors import UsageError
from gpuscope.demo.fleet import DemoFleet
from gpuscope.demo.simulated_load import SimulatedLoad, copied_bytes_per_second
from gpuscope.model.readings import ABSENT, Device
from gpuscope.serve.api.encode import failure
from gpuscope.serve.api.responses import JSON
from gpuscope.serve.api_types.session_json import DemoLoadAnswer, LoadedGpuJson
from gpuscope.serve.http.messages import Request, Response, Route

MAX_BODY_BYTES: Final = 16 << 10
KEYS: Final = frozenset({"kind", "seconds", "target", "node", "gpus", "memory_bytes"})


def demo_routes(fleet: DemoFleet, clock: Clock) -> Sequence[Route]:
    async def load(request: Request) -> Response:
        try:
            answer = start_load(fleet, clock, _read(await request.body.read(MAX_BODY_BYTES)))
        except UsageError as error:
            return Response(failure("bad_data", str(error)), 400, JSON)
        return Response(orjson.dumps(answer), 200, JSON)

    return [Route("/api/demo/load", load, ("POST",))]


def _read(body: bytes) -> dict[str, Any]:
    try:
        wanted = orjson.loads(body)
    except ValueError:
        raise UsageError("the body is not JSON") from None
    if not isinstance(wanted, dict):
        raise UsageError("the body is not a JSON object")
    unknown = sorted(set(wanted) - KEYS)
    if unknown:
        raise UsageError(f"unknown key {unknown[0]!r}; there are {', '.join(sorted(KEYS))}")
    return wanted


def start_load(fleet: DemoFleet, clock: Clock, wanted: dict[str, Any]) -> DemoLoadAnswer:
    node = _text(wanted, "node", fleet.node_names[0])
    if node not in fleet.node_names:
        raise UsageError(f"there is no node {node!r}; the first is {fleet.node_names[0]}")
    now = clock.now()
    gpus = _select(fleet.reading(fleet.node_names.index(node), now).devices, wanted.get("gpus"))
    memory = wanted.get("memory_bytes")
    load = fleet.loads.start(
        node,
        [device.uuid for device in gpus],
        kind=_text(wanted, "kind", "tensor"),
        target=_number(wanted, "target", 1.0),
        now=now,
        seconds=_number(wanted, "seconds", 45.0),
        memory_bytes=None if memory is None else int(_number(wanted, "memory_bytes", 0)),
    )
    return {"node": node, "gpus": [_to_json(device, load) for device in gpus], "ends_at": load.ends_at}


def _select(devices: Sequence[Device], wanted: object) -> list[Device]:
    whole = {str(device.index): device for device in devices if not device.lost and not device.instances}
    if wanted is None or wanted == []:
        return list(whole.values())
    if not isinstance(wanted, list):
        raise UsageError("gpus is not a list of indices")
    for name in wanted:
        if str(name) not in whole:
            raise UsageError(
                f"there is no whole GPU {str(name)[:20]!r}; there are {', '.join(whole) or 'none'}"
            )
    return [whole[str(name)] for name in dict.fromkeys(map(str, wanted))]


def _to_json(device: Device, load: SimulatedLoad) -> LoadedGpuJson:
    gpu: LoadedGpuJson = {"gpu": str(device.index), "uuid": device.uuid}
    if device.model is not ABSENT:
        gpu["model"] = device.model
    if copied := copied_bytes_per_second(device, load.kind, load.target):
        gpu["bytes_per_second"] = sum(copied.values())
    return gpu


def _text(wanted: dict[str, Any], key: str, default: str) -> str:
    value = wanted.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f"{key} is not a text")
    return value


def _number(wanted: dict[str, Any], key: str, default: float) -> float:
    value = wanted.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{key} is not a number")
    return float(value)
