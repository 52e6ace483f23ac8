"""The stand-in for vpenso's exporter: its port, its flags in both spellings, and mistakes in one sentence."""

from __future__ import annotations

import pytest

from gpuscope.agent.families.stand_in import ListenerPlan
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import Snapshot
from gpuscope.model.readings.slurm import Gres, SlurmNode, SlurmState
from gpuscope.serve.stand_ins import plan_listeners, stand_in_names


def plan(*argv: str) -> ListenerPlan:
    (found,) = plan_listeners(Settings(), [("slurm-exporter", argv)])
    return found


def test_its_port_and_family() -> None:
    assert "slurm-exporter" in stand_in_names()
    assert (plan().port, plan().families, plan().openmetrics) == (8080, ("slurm",), False)


@pytest.mark.parametrize("argv", [("-listen-address", ":9"), ("--listen-address=:9",), ("-listen-address=:9",)])
def test_gos_flags(argv: tuple[str, ...]) -> None:
    assert plan(*argv, "-gpus-acct").port == 9


@pytest.mark.parametrize(
    ("argv", "shown"), [((), True), (("-gpus-acct",), True), (("-gpus-acct=false",), False)]
)
def test_the_gpu_metrics_can_be_switched_off(argv: tuple[str, ...], shown: bool) -> None:
    node = SlurmNode(name="a", long_state="idle", gres=(Gres("gpu", "a100", 4),))
    snapshot = Snapshot(node="master", taken_at=0.0, slurm=SlurmState(up=True, nodes=(node,)))
    names = names_of(plan(*argv), snapshot)
    assert ("slurm_gpus_total" in names) == shown
    assert "slurm_nodes_idle" in names


def names_of(listener: ListenerPlan, snapshot: Snapshot) -> set[str]:
    return {family.name for builder in listener.builders for family in builder.to_families(snapshot)}


def test_it_says_whether_slurm_answers() -> None:
    """The 62 names do not. The dashboard and the rules need gpuscope's own metrics, too."""
    down = Snapshot(node="master", taken_at=0.0, slurm=SlurmState(up=False, why="slurmctld is down"))
    assert names_of(plan(), down) >= {"gpuscope_slurm_up", "gpuscope_slurm_query_success"}
    node = SlurmNode(name="a", long_state="idle", gres=(Gres("gpu", "a100", 4),))
    up = Snapshot(node="master", taken_at=0.0, slurm=SlurmState(up=True, nodes=(node,)))
    assert names_of(plan(), up) >= {"slurm_gpus_total", "gpuscope_slurm_gpus", "gpuscope_slurm_node_gpus"}


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("-listen-address=x",), "-listen-address: 'x' is not HOST:PORT"),
        (("-gpus-acct=maybe",), "-gpus-acct: 'maybe' is not true or false"),
        (("-colour",), "has no flag --colour"),
    ],
)
def test_mistakes(argv: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan(*argv)
