"""One document of `/api/live`, the same for Python and for the page: web/tests/golden.test.ts reads it too.

GOLDEN_UPDATE=1 writes it anew; it must have every key of every TypedDict, so that none goes untested.
"""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any, Literal, NotRequired

import orjson
import pytest

from gpuscope.judge.checks.facts import Gone, GoneTarget, Missing, Sample
from gpuscope.serve.api_types import findings_json, live_json
from gpuscope.serve.api_types.live_json import LivePicture
from tests.fakes import Keywords
from tests.goldens import check_golden
from tests.health.fleets import HOUR, NOW, gpu, gpu_labels, node, of_gpu, process
from tests.server.live.pictures import fleet_state


def samples() -> list[Sample]:
    host = {"instance": "n1:9400"}
    instance = {"instance": "n1:9400", "gpu": "3_7_0", "uuid": "MIG-7"}
    found: list[Sample] = node(gpus_seen=4.0, gpus_expected=5.0, node_cpu_utilization_ratio=0.25)
    found += [
        ("gpuscope_source_up", {**host, "source": "nvml"}, 1.0),
        ("gpuscope_source_up", {**host, "source": "dcgm"}, 0.0),
        ("node_load1", host, 1.5),
        ("node_memory_MemTotal_bytes", host, 1e12),
        ("node_memory_MemAvailable_bytes", host, 4e11),
    ]
    found += [*gpu("0", busy=0.98), *gpu("1", busy=0.0), *gpu("2", up=0.0), *gpu("3")]
    found += [
        of_gpu("0", "memory_used_bytes", 6e10),
        of_gpu("0", "memory_total_bytes", 8e10),
        of_gpu("0", "power_watts", 650.0),
        of_gpu("0", "power_limit_watts", 700.0, limit="enforced"),
        of_gpu("0", "temperature_celsius", 65.0, sensor="gpu"),
        of_gpu("0", "sm_active_ratio", 0.8),
        of_gpu("0", "tensor_active_ratio", 0.0),  # a zero; GPU 1 has none
        of_gpu("0", "dram_active_ratio", 0.4),
        of_gpu("2", "xid_age_seconds", 300.0, xid="79"),
    ]
    details: Keywords = {"type": "C", "command": "python3", "container": "main"}
    found += process("0", "10", user="jovyan", namespace="ml", pod="train-0", **details)
    sm = {**gpu_labels("0"), "pid": "10", "user": "jovyan", "namespace": "ml", "pod": "train-0", **details}
    found.append(("gpuscope_process_sm_ratio", sm, 0.7))
    found += [(f"gpuscope_process_{name}", sm, value) for name, value in ON_THE_CPU.items()]
    found += process("1", "11", user="alice", slurm_job="17", idle_for=2 * HOUR)
    job = {"instance": "n1:9400", "slurm_job": "17"}
    found += [
        ("gpuscope_allocation_used", {**gpu_labels("1"), "slurm_job": "17"}, 1.0),
        ("gpuscope_allocation_used", {**gpu_labels("2"), "pod": "train", "namespace": "ml"}, 1.0),
        ("gpuscope_job_info", {**job, "user": "alice", "account": "ml", "partition": "gpu"}, 1.0),
        ("gpuscope_slurm_job_info", {**job, "name": "train", "array_job": "9", "array_task": "1"}, 1.0),
        ("gpuscope_slurm_job_end_timestamp_seconds", job, NOW + HOUR),
    ]
    found += [
        ("gpuscope_mig_info", {**instance, "parent_uuid": "GPU-n1-3", "profile": "1g.10gb"}, 1.0),
        ("gpuscope_gpu_sm_active_ratio", instance, 0.0),
        ("gpuscope_process_memory_bytes", {**instance, "pid": "12", "user": "bob"}, 1e9),
        ("gpuscope_process_active", {**instance, "pid": "12", "user": "bob"}, 0.0),
        ("gpuscope_process_idle_seconds", {**instance, "pid": "12", "user": "bob"}, 90.0),
    ]
    return found


OVER_TIME = ("PastFindingJson", "FoldedFindingsJson", "CoverageJson", "PastFindingsAnswer")
"""Of another answer: `test_findings_over_time.py` has its document."""
ON_THE_CPU = {
    "cpu_ratio": 1.25,
    "run_ratio": 0.75,
    "busiest_thread_ratio": 0.75,
    "io_wait_ratio": 0.0,
    "network_wait_ratio": 0.25,
    "resident_memory_bytes": 4e9,
    "children": 8.0,
    "children_cpu_ratio": 6.5,
}
MISSING = Missing(
    samples=[
        (
            "gpuscope_agent_info",
            {"instance": "n2:9400", "job": "gpuscope", "node": "n2", "version": "0.1.0"},
            1.0,
        ),
        ("gpuscope_gpu_info", {"instance": "n2:9400", "gpu": "0", "uuid": "GPU-n2-0", "model": "L4"}, 1.0),
        ("gpuscope_agent_snapshot_timestamp_seconds", {"instance": "n2:9400"}, NOW - 400),
    ],
    nodes={"n2:9400": Gone(NOW - 400, "connection refused")},
    targets=[
        GoneTarget(job="j", instance="n2:9400", url="http://n2:9400/metrics", gone=Gone(NOW - 400, "refused"))
    ],
)


def stored(live: list[Sample]) -> list[Sample]:
    """Those of the picture, and what is left of the node that is gone."""
    agent = MISSING.samples[0]
    down: Sample = ("up", {"instance": "n2:9400", "job": "gpuscope"}, 0.0)
    return [*live, agent, down]


@pytest.fixture(scope="module")
def picture() -> LivePicture:
    live = samples()
    return fleet_state(live, now=NOW, source="store", missing=MISSING, stored=stored(live))


def test_the_document_is_the_golden(picture: LivePicture) -> None:
    check_golden(Path("api/live.json"), orjson.dumps(picture, option=orjson.OPT_INDENT_2) + b"\n")


def test_it_conforms_to_its_types_and_has_every_key(picture: LivePicture) -> None:
    seen: set[tuple[str, str]] = set()
    conform(orjson.loads(orjson.dumps(picture)), LivePicture, seen, "live")
    described = {
        (name, key)
        for module in (live_json, findings_json)
        for name, one in vars(module).items()
        if typing.is_typeddict(one)
        and one.__module__ == module.__name__
        and name not in ("FindingsAnswer", "NotKnownJson", *OVER_TIME)
        for key in one.__annotations__
    }
    assert described - seen == set()


def conform(value: Any, wanted: Any, seen: set[tuple[str, str]], where: str) -> None:
    """Whether a JSON value has the described type; every key that was met is noted."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if typing.is_typeddict(wanted):
        hints = typing.get_type_hints(wanted, include_extras=True)
        assert set(value) <= set(hints), where
        for key, hint in hints.items():
            optional = typing.get_origin(hint) is NotRequired
            assert optional or key in value, f"{where}.{key} is absent"
            if key in value:
                seen.add((wanted.__name__, key))
                conform(value[key], typing.get_args(hint)[0] if optional else hint, seen, f"{where}.{key}")
    elif origin is Literal:
        assert value in arguments, f"{where}: {value!r}"
    elif origin in (typing.Union, types.UnionType):
        assert any(_fits(value, one) for one in arguments), f"{where}: {value!r}"
    elif origin is list:
        for number, item in enumerate(value):
            conform(item, arguments[0], seen, f"{where}[{number}]")
    elif origin is dict:
        for key, item in value.items():
            conform(item, arguments[1], seen, f"{where}.{key}")
    else:
        assert _fits(value, wanted), f"{where}: {value!r} is not {wanted}"


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)
