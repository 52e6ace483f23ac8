"""Which GPUs are free, and which of them are proposed first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuscope.cli import main
from gpuscope.cli.free import Placement, Topology, Wanted, find_placements
from gpuscope.cli.terminal.fleet_view import to_fleet_view
from tests.terminal.fake_server import Answer, fake_server
from tests.terminal.scene import GIB, gpu, one_node


def picture(*gpus: dict[str, Any]) -> dict[str, Any]:
    names = sorted({row["node"] for row in gpus})
    nodes = [{"name": name, "instance": name, "stale": False, "sources": []} for name in names]
    return {**one_node(), "nodes": nodes, "gpus": list(gpus), "sessions": []}


def node(count: int, name: str = "a", **more: Any) -> list[dict[str, Any]]:
    return [gpu(str(index), name, **more) for index in range(count)]


def shown(placements: list[Placement]) -> list[tuple[str, str, str]]:
    return [(one.node, ",".join(row.gpu for row in one.gpus), one.together) for one in placements]


def islands(*groups: str, name: str = "a") -> dict[str, list[str]]:
    """`islands("01", "23")`: 0 and 1 reach each other, and 2 and 3."""
    return {f"GPU-{name}-{i}": [peer for peer in group if peer != i] for group in groups for i in group}


def test_only_idle_gpus_without_processes_are_free() -> None:
    found = find_placements(to_fleet_view(one_node()), Wanted())
    assert shown(found) == [("gpu-a01", "6", "")], "not held, throttled, sick, lost or split ones"
    found = find_placements(to_fleet_view(one_node()), Wanted(mig=True))
    assert shown(found) == [("gpu-a01", "5_8_0", "")]


@pytest.mark.parametrize(
    "state", ["held", "allocated", "busy", "sick", "throttled", "stale", "lost", "gone", "new-state", ""]
)
def test_no_other_state_is_free(state: str) -> None:
    assert find_placements(to_fleet_view(picture(gpu("0", state=state))), Wanted()) == []


def test_memory_and_model() -> None:
    view = to_fleet_view(
        picture(
            gpu("0", "a", memory_used=60 * GIB), gpu("1", "a"), gpu("2", "a", model="NVIDIA A100-SXM4-40GB")
        )
    )
    assert {row for _, row, _ in shown(find_placements(view, Wanted(memory_bytes=40 * GIB)))} == {"1", "2"}
    assert {row for _, row, _ in shown(find_placements(view, Wanted(model="a100")))} == {"2"}
    unknown = gpu("3")
    del unknown["memory_total"]
    assert find_placements(to_fleet_view(picture(unknown)), Wanted(memory_bytes=1)) == [], (
        "absent is not enough"
    )


def test_gpus_of_one_nvlink_island_and_numa_node_come_together() -> None:
    view = to_fleet_view(picture(*node(4)))
    pairs = Topology(islands("02", "13"))
    assert shown(find_placements(view, Wanted(2), pairs)) == [("a", "0,2", "NVLink")]
    assert shown(find_placements(view, Wanted(3), pairs)) == [("a", "0,1,2", "one node")]
    numa = Topology(islands("0123"), {f"GPU-a-{i}": "01"[i % 2] for i in range(4)})
    assert shown(find_placements(view, Wanted(2), numa)) == [("a", "0,2", "NVLink, one NUMA node")]
    assert shown(find_placements(view, Wanted(4), numa)) == [("a", "0,1,2,3", "NVLink")]
    only_numa = Topology({}, {"GPU-a-1": "0", "GPU-a-3": "0"})
    assert shown(find_placements(view, Wanted(2), only_numa)) == [("a", "1,3", "one NUMA node")]


def test_nodes_with_few_free_gpus_come_first_so_that_whole_nodes_stay_free() -> None:
    view = to_fleet_view(picture(*node(8, "big"), *node(2, "small"), gpu("0", "tiny")))
    assert [row[0] for row in shown(find_placements(view, Wanted(2)))] == ["small", "big"]
    assert shown(find_placements(view, Wanted(1)))[0] == ("tiny", "0", "")
    assert find_placements(view, Wanted(9)) == []


def prometheus(*samples: tuple[dict[str, str], float]) -> Answer:
    result = [{"metric": metric, "value": [1, str(value)]} for metric, value in samples]
    return Answer({"status": "success", "data": {"resultType": "vector", "result": result}})


def test_a_server_is_asked_for_links(capsys: pytest.CaptureFixture[str]) -> None:
    uuids = [f"GPU-0000-{i}" for i in range(3)]
    rows = [{**gpu(str(i), "a"), "uuid": uuid} for i, uuid in enumerate(uuids)]
    rows[0]["state"] = "allocated"
    link = {"__name__": "gpuscope_gpu_p2p_nvlink_status", "uuid": uuids[1], "gpu": "1", "peer": "2"}
    answers = {"/api/live": Answer(picture(*rows)), "/api/v1/query": prometheus((link, 0))}
    with fake_server(answers) as server:
        assert main(["free", "--server", server.url, "--count", "2", "--env"]) == 0
        told = capsys.readouterr()
        assert told.out == f"CUDA_VISIBLE_DEVICES={uuids[1]},{uuids[2]}\n"
        assert told.err == "gpuscope: on a\n"
        assert main(["free", "--server", server.url, "--count", "2", "--json"]) == 0
        (one,) = json.loads(capsys.readouterr().out)["placements"]
        assert (one["gpus"], one["together"]) == (["1", "2"], "NVLink")
        assert main(["free", "--server", server.url, "--count", "3"]) == 1
        told = capsys.readouterr()
        assert (told.out, told.err) == ("", "gpuscope: not enough free GPUs\n")


def test_a_gpu_whose_processes_are_not_known_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = [gpu(str(n), "a", state="stale", why="processes_unknown") for n in range(1, 11)]
    answers = {
        "/api/live": Answer(picture(gpu("0", "a"), *unknown, gpu("11", "a", state="stale"))),
        "/api/v1/query": prometheus(),
    }
    with fake_server(answers) as server:
        assert main(["free", "--server", server.url]) == 0
        told = capsys.readouterr()
        assert len(told.out.splitlines()) == 2
        assert told.err == (
            "gpuscope: not known whether free: GPU a 1, a 2, a 3, a 4, a 5, a 6, a 7, a 8 and 2 more: "
            "processes unknown\n"
        )
        assert main(["free", "--server", server.url, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["unknown"]
        assert [row["gpu"] for row in rows] == [str(n) for n in range(1, 11)]
        assert rows[0]["why"] == "processes_unknown"
        assert main(["top", "--server", server.url]) == 0
        assert "processes unknown" in capsys.readouterr().out


def test_one_node_of_a_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"/api/live": Answer(picture(*node(1, "a"), *node(1, "b"))), "/api/v1/query": prometheus()}
    with fake_server(answers) as server:
        assert main(["free", "--server", server.url, "--node", "b"]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["NODE", "b"]
        assert main(["free", "--server", server.url, "--node", "c"]) == 2
        assert main(["top", "--server", server.url, "--node", "b"]) == 0
        assert capsys.readouterr().out.startswith("b  1 GPU: 1 idle")


def test_nothing_but_uuids_reaches_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    evil = {**gpu("0", "a"), "uuid": "GPU-1;rm -rf /"}
    with fake_server({"/api/live": Answer(picture(evil)), "/api/v1/query": prometheus()}) as server:
        assert main(["free", "--server", server.url, "--env"]) == 1
    assert capsys.readouterr().out == ""


def test_wait_returns_when_there_are_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuscope.cli.free.FLEET_SECONDS", 0.01)
    answers = {"/api/live": Answer(picture(gpu("0", "a", state="busy"))), "/api/v1/query": prometheus()}
    with fake_server(answers) as server:
        assert main(["free", "--server", server.url, "--wait", "--timeout", "50ms"]) == 1
        asked = iter([Answer({"error": "restarting"}, 503), Answer(picture(gpu("0", "a")))])
        busy = answers["/api/live"]

        class Changing(dict[str, Answer]):
            def get(self, path: str, default: Any = None) -> Any:
                if path != "/api/live":
                    return prometheus()
                changing.count += 1
                return busy if changing.count < 3 else next(asked)

            count = 0

        changing = Changing()
        server.answers = changing
        assert main(["free", "--server", server.url, "--wait"]) == 0
    told = capsys.readouterr()
    assert "still waiting" in told.err
    assert told.out.splitlines()[1].split()[:2] == ["a", "0"]


@pytest.mark.parametrize(
    "options",
    [["--count", "0"], ["--count", "x"], ["--memory", "many"], ["--timeout", "x"], ["--mig", "--count", "2"]],
)
def test_wrong_options_are_explained(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["free", *options]) == 2
    assert options[-2] in capsys.readouterr().err or "--mig" in options
