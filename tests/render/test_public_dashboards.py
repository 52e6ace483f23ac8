"""Public dashboards show data on our metrics: 12239 (dcgm-exporter), 14574 and 25547 (nvidia_gpu_exporter).

A real Prometheus scrapes agents that stand in for the two exporters. The queries of the dashboards are below;
where the unchanged files are in ~/.cache/gpuscope/dashboards (12239.json, …), all of theirs are run, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.engines import running_prometheus
from tests.ports import free_port
from tests.render.dashboard_queries import ask, count, fill, port_of, queries_of, running_agent
from tests.waiting import wait_for

MODELS = ("h100", "rtx4090", "a100-80-mig")
"""With NVLink and a fabric, with fans, with MIG."""
OF_DCGM = '{instance=~"$instance", gpu=~"$gpu"}'
OF_SMI = '{uuid=~"$gpu", instance="$node", job="$job"}'
WITH_NAME = f" * on(uuid) group_left(index, name) nvidia_smi_gpu_info{OF_SMI}"
PLAIN = (
    "gpu_info", "pstate", "utilization_gpu_ratio", "utilization_memory_ratio", "temperature_gpu",
    "fan_speed_ratio",
    "memory_used_bytes", "power_draw_watts", "fabric_state", "compute_mode", "compute_app_used_memory_bytes",
    "ecc_errors_uncorrected_aggregate_total", "pcie_throughput_tx_bytes_per_second",
    "pcie_throughput_rx_bytes_per_second", "xid_errors_total", "xid_last_timestamp_seconds",
    *(f"clocks_current_{clock}_clock_hz" for clock in ("graphics", "video", "sm", "memory")),
    *(f"clocks_event_reasons_{reason}" for reason in (
        "gpu_idle", "sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
        "applications_clocks_setting", "sync_boost",
    )),
)  # fmt: skip
QUERIES = {
    "12239": [
        *(
            f"DCGM_FI_{name}{OF_DCGM}"
            for name in (
                "DEV_GPU_TEMP",
                "DEV_POWER_USAGE",
                "DEV_GPU_UTIL",
                "PROF_PIPE_TENSOR_ACTIVE",
                "DEV_FB_USED",
            )
        ),
        f"avg(DCGM_FI_DEV_GPU_TEMP{OF_DCGM})",
        f"sum(DCGM_FI_DEV_POWER_USAGE{OF_DCGM})",
        f"DCGM_FI_DEV_SM_CLOCK{OF_DCGM} * 1000000",
    ],
    "14574": [
        *(f"nvidia_smi_{name}{OF_SMI}" for name in PLAIN),
        f"nvidia_smi_power_draw_watts{OF_SMI} / nvidia_smi_enforced_power_limit_watts{OF_SMI}",
        f"nvidia_smi_memory_used_bytes{OF_SMI} / nvidia_smi_memory_total_bytes{OF_SMI}",
        f"rate(nvidia_smi_energy_joules_total{OF_SMI}[$__rate_interval])",
        f"nvidia_smi_mig_memory_used_bytes{OF_SMI} * on(uuid, gpu_instance_id) group_left(profile) "
        f"(max by (uuid, gpu_instance_id, profile) (nvidia_smi_mig_info{OF_SMI}))",
    ],
    "25547": [f"nvidia_smi_{name}{OF_SMI}{WITH_NAME}" for name in ("utilization_gpu_ratio", "pstate")],
}
REASONS = {"nvidia_smi_gpu_recovery_action{": "the simulated driver does not report a recovery action"}
"""By part of a query: why it is empty here."""


@pytest.fixture(scope="module")
def prometheus() -> Iterator[str]:
    with ExitStack() as stack:
        smi = []
        for model in MODELS:
            address = f"127.0.0.1:{free_port()}"
            demo = ("--source", "demo", "--demo-model", model, "--scenario", "xid79@+1s")
            flags = ("--collect.compute-apps", "--collect.pcie-throughput", f"--web.listen-address={address}")
            stack.enter_context(running_agent(*demo, "--as", "nvidia_gpu_exporter", *flags, listen=""))
            smi.append(address)
        dcgm = stack.enter_context(running_agent("--source", "demo", "--families", "dcgm"))
        jobs = {"nvidia_gpu_exporter": smi, "dcgm": [f"127.0.0.1:{port_of(dcgm)}"]}
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": targets}]} for job, targets in jobs.items()
            ],
        }
        base = stack.enter_context(running_prometheus(yaml.safe_dump(config)))
        wait_for(lambda: count(base, "nvidia_smi_xid_errors_total") >= len(MODELS), "an XID of each agent")
        wait_for(lambda: count(base, "rate(nvidia_smi_energy_joules_total[15s])"), "two scrapes")
        wait_for(lambda: count(base, "DCGM_FI_DEV_GPU_TEMP"), "DCGM's metrics")
        yield base


def choices(base: str) -> list[dict[str, str]]:
    """What the dashboards' variables offer: every node, and every GPU of it, also one that fell off the bus."""
    query = "nvidia_smi_index or max by (instance, job, uuid) (nvidia_smi_xid_errors_total)"
    found = [row["metric"] for row in ask(base, "query", query=query)["result"]]
    return [{"gpu": one["uuid"], "node": one["instance"], "job": one["job"], "instance": ".*"} for one in found]


def unchanged_file(number: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gpuscope/dashboards" / f"{number}.json"


@pytest.mark.parametrize("number", sorted(QUERIES))
def test_a_public_dashboard_has_data(prometheus: str, number: str) -> None:
    queries = [("", expr) for expr in QUERIES[number]]
    if unchanged_file(number).exists():
        queries += queries_of(json.loads(unchanged_file(number).read_text()))
    chosen = [{"instance": ".*", "gpu": ".*"}] if number == "12239" else choices(prometheus)
    empty = [
        f"{title}: {expr}"
        for title, expr in queries
        if not any(part in expr for part in REASONS)
        and not any(count(prometheus, fill(expr, values)) for values in chosen)
    ]
    assert not empty, "\n".join(empty)
