"""A driver call that is not supported costs its own numbers: none of them turns 0, and others stay.

GPU 0 refuses one call after the other, as an older or smaller card does; GPU 1 answers all of them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuscope.agent.families import Builder, load_family
from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import Snapshot, SourceStatus
from gpuscope.vendors.nvidia.families.dcgm.builder import build_with
from gpuscope.vendors.nvidia.stand_ins.dcgm_exporter import parse_dcgm_exporter_args
from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.fixtures import driver
from tests.sources.nvml_rig import Rig

__all__ = ["driver"]

MAX_LOST = 60
"""Metrics. Field values and the profiling sample are the calls with the most numbers."""
POWER = "gpuscope_gpu_power_watts"
Numbers = dict[str, dict[str, list[float]]]
"""By GPU and metric name."""


def exposed(rig: Rig) -> Numbers:
    """What the native metrics and three families of other exporters have after a few readings."""
    rig.close()
    for _ in range(3):
        reading = rig.tick()
    up = (SourceStatus(name="nvml", up=True, why=""),)
    shot = Snapshot(
        node="node", taken_at=rig.clocks.now(), drivers=reading.drivers, devices=reading.devices, sources=up
    )
    dcgm = build_with(Settings(), parse_dcgm_exporter_args((), {})[0])
    others = [load_family(name).build(Settings()) for name in ("nvidia_smi", "dcgm_legacy")]
    found: Numbers = defaultdict(lambda: defaultdict(list))
    # nvidia_smi has only the UUID, without `GPU-`.
    gpus = {str(one.uuid).removeprefix("GPU-").lower(): str(one.index) for one in reading.devices}
    builders: tuple[Builder, ...] = (NativeBuilder(), dcgm, *others)
    for builder in builders:
        for family in text_string_to_metric_families(encode_text(builder.to_families(shot)).decode()):
            for sample in family.samples:
                gpu = sample.labels.get("gpu") or gpus.get(sample.labels.get("uuid", ""), "")
                found[gpu][sample.name].append(sample.value)
    return found


@pytest.mark.slow
def test_a_call_that_is_not_supported_costs_its_own_numbers_and_none_is_zero(
    driver: FakeDriver, tmp_path: Path
) -> None:
    driver.gpus(2)
    driver.count_calls()
    for gpu in (0, 1):
        driver.processes(gpu, [Process(77)])
    with Rig(driver, tmp_path) as rig:
        before = exposed(rig)
        for family in ("gpuscope_gpu_", "DCGM_FI_", "nvidia_smi_", "dcgm_"):
            assert sum(name.startswith(family) for name in before["0"]) > 10, family
        calls = sorted(name for name in driver.calls() if name.startswith(("nvmlDeviceGet", "nvmlGpm")))
        assert len(calls) > 20
        costs: dict[str, set[str]] = {}
        for call in calls:
            driver.fail(call, 0, "NOT_SUPPORTED")
            now = exposed(rig)
            driver.heal()
            # The state of its links to GPU 0 needs GPU 0's identity.
            assert before["1"].keys() - now["1"].keys() <= {"gpuscope_gpu_p2p_nvlink_status"}, call
            if "0" not in now:  # its name or handle: without it there is no GPU
                costs[call] = set(before["0"])
                continue
            wrong = {name for name, all_of in now["0"].items() if 0 in all_of and 0 not in before["0"][name]}
            assert not wrong, call
            costs[call] = before["0"].keys() - now["0"].keys()
    assert [call for call, lost in costs.items() if POWER in lost and len(lost) <= MAX_LOST] == [
        "nvmlDeviceGetPowerUsage"
    ]
    # Without its identity a GPU has no series at all.
    assert [call for call, lost in costs.items() if len(lost) > MAX_LOST] == ["nvmlDeviceGetUUID"]
