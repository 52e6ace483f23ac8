"""Failures while the agent runs: other values continue; the failure is a metric and one log line."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuscope.agent.job_runner import MAX_ABANDONED_THREADS
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import Agent, Series, of_gpu, running_agent, source_up

__all__ = ["driver"]

UP = "gpuscope_gpu_up"
POWER = "gpuscope_gpu_power_watts"
ENERGY = "gpuscope_gpu_energy_joules_total"
ECC = "gpuscope_gpu_ecc"


def nvml_up(series: Series) -> bool:
    return source_up(series, "nvml") == 1 and of_gpu(series, UP) == 1


def test_a_gpu_lost_while_running_affects_no_other_value(driver: FakeDriver) -> None:
    with running_agent("--source", "nvml", env=driver.env) as agent:
        before = agent.until(nvml_up)
        assert of_gpu(before, POWER, 3) is not None
        driver.lose(3)
        during = agent.until(lambda series: of_gpu(series, UP, 3) == 0)
        assert of_gpu(during, POWER, 3) is None, "absent, not 0 and not its last number"
        assert all(of_gpu(during, POWER, gpu) is not None for gpu in (0, 1, 2, 4, 5, 6, 7))
        assert source_up(during, "nvml") == 1
        assert during["gpuscope_gpus_seen"] == 7
        driver.xid(4, 48)
        driver.find(3)
        agent.until(lambda series: of_gpu(series, UP, 3) == 1 and of_gpu(series, POWER, 3) is not None)
        who = [rf"GPU {gpu} \({driver.cards[gpu].uuid}, PCI address [0-9A-F:.]+\)" for gpu in range(8)]
        agent.until_logged(rf"WARNING {who[3]} is lost: it does not answer any more\n")
        agent.until_logged(rf"INFO {who[3]} is back, \d+ s after it was lost\n")
        agent.until_logged(rf"WARNING XID 48 on {who[4]}: An uncorrectable memory error; .*\n")
        assert len(re.findall(r" GPU [34] \(", agent.log())) == 3, "one line each"
        assert agent.stop() == 0


def test_a_hanging_call_affects_only_its_value_on_its_gpu(driver: FakeDriver) -> None:
    with running_agent("--source", "nvml", env=driver.env) as agent:
        before = agent.until(lambda series: nvml_up(series) and "ecc" in str(series.keys()))
        driver.hang("nvmlDeviceGetPowerUsage", 3)
        during = agent.until(lambda series: of_gpu(series, POWER, 3) is None)
        assert source_up(during, "nvml") == 1
        gone = {name for name in before if name.startswith("gpuscope_gpu_")} - during.keys()
        # Without its power it is not known whether a GPU hangs; 0 seconds would say that it does not.
        assert {name.partition("{")[0] for name in gone} == {POWER, "gpuscope_gpu_hung_seconds"}
        assert len(gone) == 2, "of one GPU"
        assert agent.get("/-/ready")[0] == 200
        agent.until_logged(r"WARNING source nvml: GPU 3: nvmlDeviceGetPowerUsage has not returned for \d+ s")
        driver.heal()
        agent.until(lambda series: of_gpu(series, POWER, 3) is not None)
        agent.until_logged(r"INFO source nvml: GPU 3: nvmlDeviceGetPowerUsage returned after \d+ s")
        assert agent.log().count("nvmlDeviceGetPowerUsage") == 2, "one line at the start, one at the end"


def test_a_driver_that_blocks_every_call_makes_only_its_source_stale(driver: FakeDriver) -> None:
    with running_agent("--source", "nvml", env=driver.env) as agent:
        agent.until(nvml_up)
        usual = _slowest_of(agent, 20)
        driver.hang("*")
        stale = agent.until(lambda series: source_up(series, "nvml") == 0)
        assert of_gpu(stale, POWER) is None, "a number nobody reads any more is not shown"
        assert stale['gpuscope_source_last_success_timestamp_seconds{source="nvml"}'] > 0, "its age"
        # The same order of magnitude: waiting for the driver would take seconds.
        assert _slowest_of(agent, 20) < max(50 * usual, 1.0)
        cycles = stale["gpuscope_agent_snapshots_total"]
        going_on = agent.until(lambda series: series["gpuscope_agent_snapshots_total"] > cycles + 5)
        assert source_up(going_on, "host") == 1
        assert any(name.startswith("node_cpu_seconds_total") for name in going_on)
        assert agent.get("/-/healthy")[0] == 200
        status, reason = agent.get("/-/ready")
        assert status == 503
        # The call that has waited longest is named; that for events belongs to no GPU.
        assert re.search(
            r"nvml: no answer for \d+ s: (GPU \d: )?nvml\w+ and \d+ more calls have not returned", reason
        )
        assert _threads(agent) <= MAX_ABANDONED_THREADS + 9 + 8
        driver.heal()
        agent.until(nvml_up)
        about_calls = re.findall(r"source nvml: \S.* (?:has|have) not returned.*", agent.log())
        assert len(about_calls) <= 3, "a call, perhaps the driver's own, and that there is no answer"


@pytest.mark.slow
def test_other_values_stay_fresh_for_ten_minutes_with_a_hanging_call(driver: FakeDriver) -> None:
    """In real time, at the agent's normal interval. A sample is fresh if its GPU's energy counter has increased
    within three seconds."""
    with running_agent("--source", "nvml", "--interval", "1s", env=driver.env) as agent:
        complete = agent.until(lambda series: nvml_up(series) and f"{ECC}_enabled" in str(series.keys()))
        per_gpu = [{name for name in complete if f'gpu="{gpu}",' in name} for gpu in range(8)]
        driver.hang("nvmlDeviceGetPowerUsage", 3)
        fresh = wanted = threads = 0
        seen: list[Series] = []
        ends = time.monotonic() + 600
        while time.monotonic() < ends:
            time.sleep(1)
            now = agent.series()
            seen = [*seen[-2:], now]
            threads = max(threads, _threads(agent))
            for gpu, names in enumerate(per_gpu):
                then, today = (of_gpu(series, ENERGY, gpu) for series in (seen[0], now))
                grown = then is not None and today is not None and (len(seen) < 3 or today > then)
                wanted += len(names)
                fresh += len(names & now.keys()) if grown else 0
        print(f"{fresh} of {wanted} samples fresh, {threads} threads at most")
        assert fresh / wanted >= 7 / 8
        assert of_gpu(now, POWER, 3) is None
        assert agent.log().count("has not returned") == 1


def _threads(agent: Agent) -> int:
    return len(list(Path(f"/proc/{agent.process.pid}/task").iterdir()))


def _slowest_of(agent: Agent, scrapes: int) -> float:
    slowest = 0.0
    for _ in range(scrapes):
        before = time.monotonic()
        agent.text()
        slowest = max(slowest, time.monotonic() - before)
    return slowest


def test_the_agent_stops_cleanly_while_a_call_hangs(driver: FakeDriver) -> None:
    with running_agent("--source", "nvml", env=driver.env) as agent:
        agent.until(nvml_up)
        driver.hang("*")
        agent.until(lambda series: source_up(series, "nvml") == 0)
        assert agent.stop() == 0
        assert "Traceback" not in agent.log()


def test_a_driver_that_hangs_at_the_start_is_logged(driver: FakeDriver) -> None:
    driver.hang("nvmlInit")
    with running_agent("--source", "nvml", env=driver.env) as agent:
        agent.until(lambda series: source_up(series, "nvml") == 0)
        assert agent.get("/-/healthy")[0] == 200
        driver.heal()
        agent.until(nvml_up)


def test_the_driver_is_unloaded_and_reloaded(driver: FakeDriver) -> None:
    with running_agent("--source", "nvml", env=driver.env) as agent:
        agent.until(nvml_up)
        driver.unload()
        down = agent.until(lambda series: source_up(series, "nvml") == 0)
        assert of_gpu(down, UP) is None
        agent.until(lambda series: series['gpuscope_source_failures_total{source="nvml"}'] >= 3)
        driver.reload("590.10.01")
        agent.until(nvml_up)
        assert 'driver_version="590.10.01"' in agent.text()
        assert agent.log().count("WARNING source nvml") == 1, "one line per episode"


def test_library_and_kernel_module_of_different_versions(driver: FakeDriver) -> None:
    driver.mismatch()
    with running_agent("--source", "nvml", env=driver.env) as agent:
        agent.until(lambda series: source_up(series, "nvml") == 0)
        assert "version" in agent.until_logged(r"WARNING source nvml: .*")
        driver.reload()
        agent.until(nvml_up)


def is_shown(uuid: str, series: Iterable[str]) -> bool:
    """Whether a series has the UUID, other than the counters that reports add up: those stay for a while."""
    return any(uuid in name and not name.partition("{")[0].endswith("_seconds_total") for name in series)


def test_mig_is_reconfigured_while_the_agent_runs(driver: FakeDriver) -> None:
    first = driver.mig(1, [Mig(gi=7), Mig(gi=8)])
    with running_agent("--source", "nvml", env=driver.env) as agent:
        before = agent.until(
            lambda series: of_gpu(series, "gpuscope_gpu_memory_total_bytes", "1_8_0") is not None
        )
        assert all(any(uuid in name for name in before) for uuid in first)
        (second,) = driver.mig(1, [Mig(gi=2, profile="3g.40gb")])
        after = agent.until(lambda series: any(second in name for name in series))
        assert not any(is_shown(uuid, after) for uuid in first), "the old instances are gone"
        driver.mig(1, [])
        agent.until(
            lambda series: (
                not is_shown(second, series) and of_gpu(series, "gpuscope_gpu_utilization_ratio", 1) is not None
            )
        )


def test_a_replaced_gpu_gets_its_own_series(driver: FakeDriver) -> None:
    with running_agent("--source", "nvml", env=driver.env) as agent:
        agent.until(nvml_up)
        old = driver.cards[2].uuid
        driver.unload()
        agent.until(lambda series: source_up(series, "nvml") == 0)
        driver.swap(2)
        driver.hotplug()
        driver.reload()
        after = agent.until(lambda series: of_gpu(series, UP, 8) == 1)
        assert any(driver.cards[2].uuid in name for name in after)
        assert not any(old in name and name.startswith(UP) for name in after)


HOSTILE: tuple[str | bytes, ...] = (
    'quo"te',
    "back\\slash",
    "new\nline",
    b"\xff\xfe invalid",
    "x" * 4096,
    "}{,=\t",
    "\u202egnp.exe",
    " ",
)


def test_hostile_process_names_reach_the_text_escaped(driver: FakeDriver) -> None:
    driver.processes(0, [Process(1000 + i, name=name) for i, name in enumerate(HOSTILE)])
    with running_agent("--source", "nvml", env=driver.env) as agent:
        series = agent.until(
            lambda series: (
                sum(name.startswith("gpuscope_process_memory_bytes{") for name in series) == len(HOSTILE)
            )
        )
        assert max(map(len, series)) < 1000, "a name of 4 kB is cut"
        assert "\n# EOF\n" in agent.text("application/openmetrics-text;version=1.0.0")


def test_a_process_that_ends_between_two_calls_has_no_name(driver: FakeDriver) -> None:
    driver.processes(0, [Process(1000, name=None), Process(1001, name="train.py")])
    with running_agent("--source", "nvml", env=driver.env) as agent:
        series = agent.until(nvml_up)
        commands = [name for name in series if name.startswith("gpuscope_process_memory_bytes{")]
        assert len(commands) == 2
        assert sum('command="train.py"' in name for name in commands) == 1
        assert sum('command=""' in name for name in commands) == 1
