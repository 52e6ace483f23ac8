"""What holds for all tests: which run when and where, and no test has a wall-clock limit.

`make test-fast` leaves out what starts a process, an engine or a browser, or runs for seconds: the paths in
NOT_FAST. Tests marked `slow` run only with SLOW=1.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("random", deadline=None)
# The same examples in each run: what passes here passes in CI. SLOW=1 looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
# `make test-fast` shows that a property holds at all.
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("random" if os.environ.get("SLOW") else "repeatable")

# Tests start hundreds of processes. Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each of them
# compiles every module again: more than half of what starting a server costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Go programs here run for seconds and need little memory: a third of promtool's time was garbage collection.
os.environ.setdefault("GOGC", "400")

HERE = Path(__file__).parent
NOT_FAST = (
    "cli/test_commands.py",
    "cli/test_findings_history.py",
    "cli/test_gone.py",
    "cli/test_limits_shown.py",
    "cli/test_live_commands.py",
    "cli/test_nodecheck.py",
    "cli/test_server.py",
    "cli/test_up.py",
    "cli/test_user.py",
    "clients",
    "doctor/test_machine_checks.py",
    "doctor/test_server_reachability.py",
    "doctor/test_stored_data.py",
    "fake_nvml",
    "fuzz",
    "hostile",
    "integration",
    "integration_api",
    "judgement",
    "load/test_load_command.py",
    "metrics/test_dcgm_promtool.py",
    "metrics/test_host_node_exporter.py",
    "metrics/test_infiniband_node_exporter.py",
    "metrics/test_nvidia_smi_replay.py",
    "metrics/test_sessions_prometheus.py",
    "metrics/test_slurm_prometheus.py",
    "notify/test_alerting_verdicts.py",
    "notify/test_alertmanager.py",
    "notify/test_api_against_alertmanager.py",
    "notify/test_api_errors_against_alertmanager.py",
    "notify/test_decisions_against_alertmanager.py",
    "notify/test_end_to_end.py",
    "notify/test_idle_policy_live.py",
    "notify/test_running.py",
    "owners/test_agent.py",
    "owners/test_churn.py",
    "owners/test_launchers.py",
    "owners/test_process_work.py",
    "owners/test_real_holders.py",
    "owners/test_shared_gpu.py",
    "page",
    "promql/test_budget.py",
    "promql/test_differential.py",
    "promql/test_odd_queries.py",
    "promql/test_public_corpus.py",
    "promql/test_sample_pool.py",
    "promql/test_wide_differential.py",
    "query_engines/test_engine_clients.py",
    "query_engines/test_hostile_engine.py",
    "render/kubernetes",
    "render/test_arm64.py",
    "render/test_compose_project.py",
    "render/test_grafana_queries.py",
    "render/test_helm_chart.py",
    "render/test_helm_manifests.py",
    "render/test_image_files.py",
    "render/test_labs.py",
    "render/test_prometheus_files.py",
    "render/test_public_dashboards.py",
    "render/test_running.py",
    "render/test_systemd_lab.py",
    "render/test_systemd_units.py",
    "reports/test_findings_of_demo.py",
    "reports/test_findings_on_engines.py",
    "reports/test_past_findings.py",
    "reports/test_report_gaps.py",
    "reports/test_simulated_fleets.py",
    "reports/test_usage_over_engines.py",
    "rules/templates/test_against_go.py",
    "rules/test_against_prometheus.py",
    "rules/test_compliance.py",
    "rules/test_healthy_machines.py",
    "rules/test_promtool.py",
    "rules/test_reload_against_prometheus.py",
    "rules/test_running.py",
    "rules/test_scenario.py",
    "rules/test_shipped_rules.py",
    "rules/test_under_load.py",
    "scrape/test_against_prometheus.py",
    "scrape/test_dns_provider.py",
    "scrape/test_http_provider.py",
    "scrape/test_kubernetes_provider.py",
    "scrape/test_providers_against_prometheus.py",
    "scrape/test_scraper.py",
    "scrape/test_simulated_history.py",
    "server/api/test_large_responses.py",
    "server/http/test_hostile.py",
    "server/http/test_limits.py",
    "server/live/test_event_stream.py",
    "server/login/test_private_file.py",
    "server/login/test_running.py",
    "server/login/test_write_routes.py",
    "server/reports/test_findings_over_time.py",
    "slurm_lab",
    "sources/test_dcgm.py",
    "sources/test_demo.py",
    "sources/test_demo_scenarios.py",
    "sources/test_nccl_ras_processes.py",
    "sources/test_nvidia_smi_command.py",
    "sources/test_nvidia_smi_source.py",
    "sources/test_nvml_peers.py",
    "sources/test_nvml_processes.py",
    "sources/test_nvml_readings.py",
    "sources/test_nvml_requested.py",
    "sources/test_nvml_samples.py",
    "sources/test_nvml_stuck_calls.py",
    "sources/test_nvml_trouble.py",
    "sources/test_old_driver.py",
    "sources/test_slurm_pace.py",
    "store/test_background.py",
    "store/test_column_reader.py",
    "store/test_failures.py",
    "store/test_kill.py",
    "store/test_late.py",
    "store/test_salvage.py",
    "terminal/test_in_a_terminal.py",
    "terminal/test_top_app.py",
    "test_architecture.py",
    "test_engines.py",
    "test_fake_nvml.py",
    "test_how_to_add.py",
    "test_package.py",
    "vendors/amd/test_opened_files.py",
    "wiring/test_garbage_collection.py",
    "wiring/test_heap.py",
    "wiring/test_live_readers.py",
    "wiring/test_service_manager.py",
    "wiring/test_serving.py",
    "wiring/test_waiting_processes.py",
)
LONGEST_FIRST = (
    "page/test_page.py",
    "judgement",
    "notify/test_idle_policy_live.py",
    "render/test_helm_manifests.py",
    "clients",
    "test_package.py",
    "slurm_lab",
    "load/test_load_command.py",
    "test_how_to_add.py",
    "hostile/test_catalogue.py",
    "reports/test_usage_over_engines.py",
    "reports/test_findings_of_demo.py",
    "render/test_helm_chart.py",
    "rules/templates/test_against_go.py",
    "page",
    "integration/test_soak.py",
    "render/test_grafana_queries.py",
    "notify/test_alertmanager.py",
    "rules/test_shipped_rules.py",
    "server/login/test_running.py",
    "rules",
    "notify",
    "integration_api",
    "cli",
    "integration",
    "hostile",
    "render",
    "reports",
    "store",
    "test_architecture.py",
)
"""Folders and files in the order in which they begin, the others after them: a file runs on one worker, and a
long one that begins last would run alone."""

SHARED = ("slurm_lab", "clients")
"""Folders that run on one worker, as a file does: what their files share is started once."""


def _name(path: Path) -> str:
    return path.relative_to(HERE).as_posix()


def _is_within(name: str, one: str) -> bool:
    return name == one or name.startswith(f"{one}/")


@cache  # asked for each test, and there are thousands in a few hundred files
def is_not_fast(path: Path) -> bool:
    name = _name(path)
    return any(_is_within(name, one) for one in NOT_FAST)


def _turn(path: Path) -> int:
    name = _name(path)
    return next((turn for turn, one in enumerate(LONGEST_FIRST) if _is_within(name, one)), len(LONGEST_FIRST))


def _leaves_out_slow_files(config: pytest.Config) -> bool:
    return "not not_fast" in (config.option.markexpr or "")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile` in our order, where pytest-xdist would begin with the files that have most tests."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class InOurOrder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((one for one in SHARED if file.startswith(f"{HERE.name}/{one}/")), file)

    config.option.loadscopereorder = False
    return InOurOrder(config, log)


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """Two more than there are cores: tests with processes and engines wait for them most of the time."""
    cores = yield
    is_chosen = "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    return cores if is_chosen or _leaves_out_slow_files(config) else cores + 2


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that would be deselected are not even imported."""
    if _leaves_out_slow_files(config) and collection_path.is_relative_to(HERE):
        return is_not_fast(collection_path) or None
    return None


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end; no garbage collection need look at them again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    turns = {path: _turn(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: turns[item.path])
    for item in items:
        if is_not_fast(item.path):
            item.add_marker(pytest.mark.not_fast)
        if item.get_closest_marker("slow") and os.environ.get("SLOW") != "1":
            item.add_marker(pytest.mark.skip(reason="slow: run with SLOW=1"))
