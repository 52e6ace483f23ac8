"""Documents of `/api/live` for the tests: every state, MIG, absent numbers, hostile names; large fleets."""

from __future__ import annotations

import copy
from typing import Any

GIB = float(1 << 30)
NOW = 1_700_000_000.0
CLEAR = "\x1b[2J\x1b]0;owned\x07"


def gpu(index: str, node: str = "gpu-a01", **more: Any) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{node}-{index}",
        "gpu": index,
        "node": node,
        "model": "NVIDIA H100 80GB HBM3",
        "state": "idle",
        "busy": 0.0,
        "memory_used": 0.5 * GIB,
        "memory_total": 79.6 * GIB,
        "power": 71.0,
        "power_limit": 700.0,
        "temperature": 34.0,
        "users": [],
        "processes": 0,
        **more,
    }


def session(pid: int, index: str, node: str = "gpu-a01", **more: Any) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{node}-{index}",
        "gpu": index,
        "node": node,
        "pid": pid,
        "type": "C",
        "command": "python",
        "user": "alice",
        "memory": 20 * GIB,
        "sm": 0.5,
        "since": NOW - 7200,
        "state": "active",
        **more,
    }


def one_node() -> dict[str, Any]:
    """GPU 0 busy, 1 held, 2 throttled, 3 sick, 4 lost, 5 split in two, 6 free, 7 with hostile text."""
    mig = {"parent": "GPU-gpu-a01-5", "profile": "1g.10gb", "model": "NVIDIA H100 80GB HBM3"}
    slice_0, slice_1 = gpu("5_7_0", **mig), gpu("5_8_0", **mig)
    for one in (slice_0, slice_1):
        for key in ("busy", "power", "power_limit", "temperature"):
            del one[key]
        one["memory_total"] = 9.3 * GIB
    slice_0 |= {"state": "busy", "sm": 0.31, "users": ["dana"], "processes": 1, "memory_used": 4 * GIB}
    lost = {key: value for key, value in gpu("4").items() if key in ("uuid", "gpu", "node", "model")}
    return {
        "now": NOW,
        "simulated": False,
        "source": "store",
        "nodes": [
            {
                "name": "gpu-a01", "instance": "gpu-a01:9400", "stale": False, "sources": [],
                "gpus_expected": 8.0, "gpus_seen": 7.0, "cpu": 0.25,
                "memory_used": 100 * GIB, "memory_total": 512 * GIB,
            }
        ],
        "gpus": [
            gpu("0", state="busy", busy=0.93, memory_used=24 * GIB, power=485.0, temperature=61.0, sm=0.58,
                tensor=0.2, dram=0.3, users=["alice", "bjorn"], processes=2),
            gpu("1", state="held", since=NOW - 7200, memory_used=26.9 * GIB, users=["fatima"], processes=1),
            gpu("2", state="throttled", why="hw_thermal", busy=1.0, temperature=91.0,
                users=["chidi"], processes=1),
            gpu("3", state="sick", why="XID 79"),
            {**lost, "state": "lost", "users": [], "processes": 0},
            gpu("5", state="busy"),
            slice_0,
            slice_1,
            gpu("6"),
            gpu("7", state="busy", busy=0.07, users=[f"eve{CLEAR}"], processes=1, model=f"H200{CLEAR}"),
        ],
        "sessions": [
            session(4242, "0", job="7885722", memory=12 * GIB),
            session(4243, "0", user="bjorn", namespace="ml", pod="train-0", memory=12 * GIB, sm=0.43),
            session(900, "1", user="fatima", command="ipykernel_launcher", state="idle", sm=0.0,
                    idle_since=NOW - 7000),
            session(77, "2", user="chidi", command="日本語プログラム", sm=1.0),
            {"uuid": "GPU-gpu-a01-5_7_0", "gpu": "5_7_0", "node": "gpu-a01", "pid": 50, "user": "dana",
             "command": "tritonserver", "state": "unknown", "memory": 4 * GIB},
            session(666, "7", user=f"eve{CLEAR}", command=f"rm{CLEAR}\n-rf", pod=f"p{CLEAR}", sm=0.07),
        ],
        "targets": [],
        "findings": [
            {"kind": "xid_hardware", "severity": "critical", "node": "gpu-a01", "gpus": ["3"], "uuids": [],
             "why": "GPU 3: XID 79, a hardware fault", "next": "drain the node", "since": NOW - 600},
            {"kind": "held_idle", "severity": "warning", "node": "gpu-a01", "gpus": ["1"], "uuids": [],
             "why": f"GPU 1 is idle{CLEAR}", "next": "ask fatima", "since": None},
        ],
    }  # fmt: skip


def fleet(nodes: int, gpus_per_node: int = 8) -> dict[str, Any]:
    """Busy and idle GPUs; one process on each busy GPU."""
    picture = copy.deepcopy(one_node())
    names = [f"gpu-{number:03d}" for number in range(nodes)]
    picture["nodes"] = [{"name": name, "instance": name, "stale": False, "sources": []} for name in names]
    picture["gpus"], picture["sessions"] = [], []
    for row, name in enumerate(names):
        for index in range(gpus_per_node):
            busy = (row * 7 + index * 13) % 101 / 100
            working = {
                "state": "busy",
                "busy": busy,
                "users": ["alice"],
                "processes": 1,
                "power": 80 + 600 * busy,
            }
            picture["gpus"].append(gpu(str(index), name, **(working if index % 4 else {})))
            if index % 4:
                picture["sessions"].append(session(1000 * row + index, str(index), name, sm=busy))
    return picture
