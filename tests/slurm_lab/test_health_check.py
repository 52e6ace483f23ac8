"""The HealthCheckProgram on a real node: it reports, drains with the reason, and resumes when that is over.

slurmd runs deploy/slurm/gpuscope-health-check every three seconds; the GPUs are those of a fake driver.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent.sources.slurm.node_drain import NodeControl
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.slurm_lab.cluster import SlurmCluster

__all__ = ["driver"]

NODE = "gpu2"
IDLE_NODE = "gpu4"


@pytest.fixture
def checked(cluster: SlurmCluster, driver: FakeDriver) -> Iterator[Path]:
    """slurmd's variables for the health check of one node; its GPUs are the fake driver's."""
    driver.gpus(4)
    # A resumed node is `idle*` for a while, and gets no health check meanwhile.
    cluster.wait(f"{NODE} to respond", lambda: "*" not in cluster.run("sinfo", "-h", "-n", NODE, "-o", "%T"))
    variables = cluster.outside / f"health-{NODE}"
    yield variables
    variables.unlink(missing_ok=True)
    (cluster.outside / "health.log").unlink(missing_ok=True)
    shutil.rmtree(cluster.outside / "drain-state", ignore_errors=True)
    cluster.run("scontrol", "update", f"NodeName={NODE}", "State=UNDRAIN")


def configure(
    cluster: SlurmCluster,
    driver: FakeDriver,
    variables: Path,
    *,
    drain: bool,
    expected: str = "--expected-gpus 4",
) -> None:
    state = cluster.outside / "drain-state"
    flags = f"--node {NODE} --source nvml {expected} --slurm-bin-dir {cluster.clients}"
    values = {
        **driver.env,
        "PATH": f"{cluster.outside}:/usr/sbin:/usr/bin:/sbin:/bin",
        "GPUSCOPE": f"{sys.executable} -m gpuscope",
        "GPUSCOPE_DRAIN": "yes" if drain else "no",
        "GPUSCOPE_NODECHECK": f"{flags} --drain-state-dir {state}",
    }
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    # Instead of the system log.
    (cluster.outside / "logger").write_text(f'#!/bin/sh\nshift 2; echo "$@" >> {cluster.outside}/health.log\n')
    (cluster.outside / "logger").chmod(0o755)
    temporary = variables.with_suffix(".new")
    temporary.write_text(text)
    temporary.rename(variables)


def node_record(cluster: SlurmCluster) -> str:
    return cluster.run("scontrol", "show", "node", NODE, "-o")


def logged(cluster: SlurmCluster) -> str:
    path = cluster.outside / "health.log"
    return path.read_text() if path.exists() else ""


def test_a_node_is_drained_and_resumed(cluster: SlurmCluster, driver: FakeDriver, checked: Path) -> None:
    driver.lose(3)
    configure(cluster, driver, checked, drain=True)
    cluster.wait("the drain", lambda: "DRAIN" in node_record(cluster))
    reason = re.search(r"Reason=(gpuscope [^\[]*) \[", node_record(cluster))
    assert reason
    assert re.match(r"gpuscope (gpu_lost|gpus_missing)", reason[1])
    # The program writes its line after slurmctld has changed the node.
    cluster.wait("the line of the drain", lambda: f"node {NODE}: drained: gpuscope" in logged(cluster))

    driver.find(3)
    cluster.wait("the resume", lambda: "DRAIN" not in node_record(cluster))
    cluster.wait("the line of the resume", lambda: "resumed" in logged(cluster))


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["hangs", "is unloaded"])
def test_a_node_whose_driver_does_not_answer_is_drained(
    cluster: SlurmCluster, driver: FakeDriver, checked: Path, trouble: str
) -> None:
    """Only Slurm knows how many GPUs there are: nobody has seen them."""
    if trouble == "hangs":
        driver.hang("*")
    else:
        driver.unload()
    configure(cluster, driver, checked, drain=True, expected="")
    cluster.wait("the drain", lambda: "DRAIN" in node_record(cluster))
    assert "Reason=gpuscope gpus_missing: 0 of 4 GPUs that Slurm has here answer" in node_record(cluster)
    driver.heal()
    driver.reload()
    cluster.wait("the resume", lambda: "DRAIN" not in node_record(cluster))


@pytest.mark.slow
def test_by_default_it_only_reports(cluster: SlurmCluster, driver: FakeDriver, checked: Path) -> None:
    driver.lose(3)
    configure(cluster, driver, checked, drain=False)
    cluster.wait("a report", lambda: "GPU" in logged(cluster))
    assert "DRAIN" not in node_record(cluster)


@pytest.mark.slow
def test_another_persons_drain_is_left_alone(cluster: SlurmCluster, driver: FakeDriver, checked: Path) -> None:
    cluster.run("scontrol", "update", f"NodeName={NODE}", "State=DRAIN", "Reason=new fan [on Friday]")
    driver.lose(3)
    configure(cluster, driver, checked, drain=True)
    cluster.wait("a report", lambda: "left alone, drained by root: new fan" in logged(cluster))
    driver.find(3)
    note = cluster.outside / "drain-state" / f"drain-{NODE}"
    cluster.wait("a check without findings", lambda: note.exists() and note.read_text() == "")
    assert "Reason=new fan" in node_record(cluster)


@pytest.mark.slow
def test_a_node_that_is_also_down_stays_down(cluster: SlurmCluster) -> None:
    """A node without jobs: those of a node that goes down end."""
    control = NodeControl(IDLE_NODE, str(cluster.clients), 60.0)
    states = ("sinfo", "-h", "-p", "gpu", "-n", IDLE_NODE, "-o", "%T")
    cluster.run("scontrol", "update", f"NodeName={IDLE_NODE}", "State=DOWN", "Reason=no power")
    control.drain("gpuscope gpu_lost")
    assert control.read().is_drained
    control.resume()
    assert not control.read().is_drained
    assert cluster.run(*states).strip().rstrip("*") == "down"
