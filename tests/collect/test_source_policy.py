"""Which sources are used, in which order, and when one stands in for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuscope.agent.collect.source_worker import choose_sources
from gpuscope.base.settings import Settings
from gpuscope.base.source_plan import SourcePlan, source_plans
from gpuscope.model.readings import ABSENT, Device, Maybe, Reading
from tests.fakes import gpu, make_settings


@pytest.fixture
def dcgmi(tmp_path: Path) -> str:
    command = tmp_path / "dcgmi"
    command.touch(mode=0o755)
    return str(command)


def names(settings: Settings, *families: str, also: Sequence[str] = ()) -> list[str]:
    return [choice.name for choice in choose_sources(settings, families, also)]


def test_auto_has_every_source_that_may_be_needed_in_order_of_trust(dcgmi: str) -> None:
    settings = make_settings(dcgmi_command=dcgmi)
    beside = ["kernel-log", "infiniband", "nccl-ras"]
    assert names(settings, "native", "host") == ["nvml", "dcgm", "nvidia-smi", *beside, "host"]
    assert names(settings, "native") == ["nvml", "dcgm", "nvidia-smi", *beside]
    assert names(make_settings(dcgmi_command="/none/dcgmi"), "native") == ["nvml", "nvidia-smi", *beside]


def test_a_source_that_is_named_is_the_only_one_for_gpus(dcgmi: str) -> None:
    for source in ("nvml", "dcgm", "nvidia-smi", "demo"):
        settings = make_settings(source=source, dcgmi_command=dcgmi)
        assert names(settings, "native", "host") == [source, "kernel-log", "infiniband", "nccl-ras", "host"]
        (choice, *_) = choose_sources(settings, ["native"])
        assert choice.wanted([]), "it stands in for nothing"


def test_a_machine_without_gpus_is_asked_for_none() -> None:
    assert names(Settings(), "host") == ["infiniband", "host"]
    assert names(Settings(source="nvml"), "host") == ["infiniband", "host"]
    assert names(Settings(), "slurm") == ["slurm"]


@dataclass
class State:
    name: str
    reading: Maybe[Reading] = ABSENT
    down: bool = False
    answering: float = 60.0

    def fresh(self) -> Maybe[Reading]:
        return self.reading

    def is_down(self) -> bool:
        return self.down

    def answering_for(self) -> float:
        return self.answering


def wanted(name: str, nvml: State, dcgmi: str, also: Sequence[str] = ()) -> bool:
    chosen = {one.name: one for one in choose_sources(make_settings(dcgmi_command=dcgmi), ["native"], also)}
    return chosen[name].wanted([nvml, State("dcgm"), State("nvidia-smi")])


def test_nvidia_smi_is_wanted_while_nvml_is_down_or_all_the_time(dcgmi: str) -> None:
    assert wanted("nvidia-smi", State("nvml", down=True), dcgmi)
    assert not wanted("nvidia-smi", State("nvml"), dcgmi)
    assert wanted("nvidia-smi", State("nvml"), dcgmi, also=["nvidia-smi"])


def answer(*devices: Device, after: float = 60.0) -> State:
    return State("nvml", Reading(devices=devices), answering=after)


def test_dcgm_is_wanted_for_profiling_that_nvml_lacks(dcgmi: str) -> None:
    hopper, ampere = {"compute_capability": "9.0"}, {"compute_capability": "8.0"}
    assert not wanted("dcgm", answer(gpu(0, engine_active_ratio={"sm": 0.0})), dcgmi), "0 is a value"
    assert wanted("dcgm", answer(gpu(0, engine_active_ratio={"sm": 0.5}), gpu(1)), dcgmi)
    assert not wanted("dcgm", answer(gpu(0, lost=True)), dcgmi)
    assert not wanted("dcgm", answer(gpu(0, **hopper), after=4.0), dcgmi), "the second reading may have it"
    assert wanted("dcgm", answer(gpu(0, **hopper), after=5.0), dcgmi)
    assert wanted("dcgm", answer(gpu(0, **ampere), after=1.0), dcgmi)
    assert wanted("dcgm", State("nvml", down=True), dcgmi)
    assert not wanted("dcgm", State("nvml"), dcgmi), "its first read may still succeed"


def test_a_new_plan_takes_its_place_by_trust() -> None:
    plans = {**source_plans(), "new": SourcePlan(trust=15, selectable=True, in_auto=lambda settings: True)}
    plans = dict(sorted(plans.items(), key=lambda item: item[1].trust))
    chosen = choose_sources(make_settings(dcgmi_command="/none"), ["native"], plans=plans)
    assert [one.name for one in chosen] == ["nvml", "new", "nvidia-smi", "kernel-log", "infiniband", "nccl-ras"]


def test_users_programs_are_contacted_unless_a_setting_forbids_it() -> None:
    assert "nccl-ras" in names(Settings(), "native")
    assert "nccl-ras" not in names(Settings(no_nccl_ras=True), "native")  # type: ignore[call-arg]
