"""Live pictures for the terminal: a real agent's metrics, this machine's driver, and who is asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.base.errors import GpuscopeError, ServerUnreachable
from gpuscope.cli.wiring import live_readers
from gpuscope.cli.wiring.live_client import EndpointMissing, LiveClient, LoginNeeded
from gpuscope.cli.wiring.live_readers import AgentReader, Picture, find_running, links, numa_nodes, to_picture
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.sample_judge import SampleJudge
from tests.fake_nvml.driver import FakeDriver, Mig
from tests.fake_nvml.fixtures import driver
from tests.terminal.fake_server import Answer, fake_server
from tests.terminal.scene import one_node
from tests.waiting import wait_for

__all__ = ["driver"]


@pytest.fixture
def agent(driver: FakeDriver) -> Iterator[str]:
    """A real agent on the fake driver: GPU 0 busy, GPU 3 in MIG mode."""
    driver.set(0, util=63, memory_used=7 << 30, power_mw=431_250, temperature=57)
    driver.mig(3, [Mig(gi=1)])
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "agent", "--listen", "127.0.0.1:0", "--node", "gpu-a01"],
        env={**os.environ, **driver.env, "GPUSCOPE_LOG_LEVEL": "info"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                break
        else:
            pytest.fail("the agent ended")
    finally:
        process.terminate()
        process.stderr.close()
        process.wait()


def first_picture(reader: AgentReader) -> Picture:
    """An agent answers 503 before its first cycle."""

    def look() -> Picture | None:
        try:
            picture = reader.read()
        except GpuscopeError:
            return None
        return picture if any("busy" in gpu for gpu in picture["gpus"]) and picture["links"] else None

    return wait_for(look, "the first numbers")


def test_an_agent_gives_what_a_server_would(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = AgentReader(LiveClient(agent), is_local=False)
    picture = first_picture(reader)
    gpu = picture["gpus"][0]
    assert (gpu["busy"], gpu["power"], gpu["temperature"], gpu["state"]) == (0.63, 431.25, 57, "busy")
    assert [row["gpu"] for row in picture["gpus"]] == ["0", "1", "2", "3", "3_1_0", "4", "5", "6", "7"]
    assert picture["nodes"][0]["name"] == "gpu-a01"
    assert picture["findings"] == []
    assert len(picture["links"][gpu["uuid"]]) == 7, "all GPUs of an HGX board reach each other"
    reader.close()
    monkeypatch.setattr(live_readers, "AGENT_URL", agent)
    with fake_server({}) as server:
        monkeypatch.setattr(live_readers, "SERVER_URL", server.url)
        assert find_running("another-name") is None
        found = find_running("gpu-a01")
    assert found is not None
    assert found.is_local
    assert found.read()["findings"] == []
    found.close()


@pytest.mark.parametrize(
    ("change", "is_asked"),
    [({}, True), ({"simulated": True}, False), ({"nodes": []}, False)],
    ids=["this machine", "a demo", "another machine"],
)
def test_a_server_on_this_machine_is_asked_if_it_knows_it(
    change: dict[str, object], is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_server({}) as other, fake_server({"/api/live": Answer({**one_node(), **change})}) as server:
        monkeypatch.setattr(live_readers, "AGENT_URL", other.url)  # answers 404, as another program would
        monkeypatch.setattr(live_readers, "SERVER_URL", server.url)
        found = find_running("gpu-a01")
        assert (found is not None) == is_asked
        if found is not None:
            found.close()


def test_stale_numbers_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = one_node()
    picture["nodes"][0]["stale"] = True
    with fake_server({"/api/live": Answer(picture)}) as server:
        monkeypatch.setattr(live_readers, "AGENT_URL", server.url)
        monkeypatch.setattr(live_readers, "SERVER_URL", server.url)
        assert find_running("gpu-a01") is None


def test_a_metrics_page_of_something_else_is_an_error() -> None:
    with fake_server({"/metrics": Answer(b"<html>\nnot metrics {{{\n")}) as server:
        reader = AgentReader(LiveClient(server.url), is_local=True)
        with pytest.raises(GpuscopeError, match="cannot be read"):
            reader.read()
        reader.close()


def test_findings_of_one_machine() -> None:
    gpu = {"uuid": "GPU-1", "gpu": "3", "instance": ""}
    samples = [
        ("gpuscope_agent_info", {"instance": "", "node": "a"}, 1.0),
        ("gpuscope_agent_snapshot_timestamp_seconds", {"instance": ""}, 1000.0),
        ("gpuscope_gpu_info", {**gpu, "node": "a", "model": "H100"}, 1.0),
        ("gpuscope_gpu_up", gpu, 0.0),
    ]
    judge = SampleJudge()
    picture = to_picture(samples, judge, FleetJudge(judge), now=1000.0, source="test")
    (finding,) = picture["findings"]
    assert (finding["kind"], finding["node"], finding["gpus"]) == ("gpu_lost", "a", ["3"])
    assert finding["next"]
    assert picture["gpus"][0]["state"] == "lost"


def test_links_and_numa_nodes(tmp_path: Path) -> None:
    samples = [
        ("gpuscope_gpu_p2p_nvlink_status", {"uuid": "GPU-1", "peer": "1"}, 0.0),
        ("gpuscope_gpu_p2p_nvlink_status", {"uuid": "GPU-1", "peer": "2"}, 5.0),
        ("gpuscope_gpu_info", {"uuid": "GPU-1", "pci_bus_id": "00000000:C3:00.0"}, 1.0),
        ("gpuscope_gpu_info", {"uuid": "GPU-2", "pci_bus_id": "../../etc"}, 1.0),
        ("gpuscope_gpu_info", {"uuid": "GPU-3", "pci_bus_id": "00000000:C4:00.0"}, 1.0),
    ]
    for address, node in (("0000:c3:00.0", "1"), ("0000:c4:00.0", "-1")):
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    assert links(samples) == {"GPU-1": ["1"]}
    assert numa_nodes(samples, str(tmp_path)) == {"GPU-1": "1"}


def test_what_the_client_tells_apart() -> None:
    with fake_server({"/refused": Answer({}, 401), "/broken": Answer({"error": "why"}, 500)}) as server:
        client = LiveClient(server.url)
        with pytest.raises(LoginNeeded, match="GPUSCOPE_TOKEN"):
            client.get("/refused")
        with pytest.raises(EndpointMissing):
            client.get("/nothing")
        with pytest.raises(GpuscopeError, match="answers 500: why"):
            client.get("/broken")
        client.close()
    with pytest.raises(ServerUnreachable):
        client.get("/")
