"""What holds for all tests: which run when, and no test has a wall-clock limit.

`make test-fast` leaves out what starts a process, an engine or a browser, or runs for seconds: the paths in
NOT_FAST. Tests marked `slow` run only with SLOW=1.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("gpuscope", deadline=None)
# `make test-fast` shows that a property holds at all; `make test` and CI look for the rare example.
settings.register_profile("fast", deadline=None, max_examples=25)
settings.load_profile("gpuscope")

HERE = Path(__file__).parent
NOT_FAST = (
    "cli/test_commands.py",
    "cli/test_findings_history.py",
    "cli/test_gone.py",
    "cli/test_limits_shown.py",
    "cli/test_live_commands.py",
    "cli/test_server.py",
    "cli/test_up.py",
    "cli/test_user.py",
    "clients",
    "doctor/test_machine_checks.py",
    "doctor/test_server_reachability.py",
    "fake_nvml",
    "fuzz",
    "hostile",
    "integration",
    "integration_api",
    "load/test_load_command.py",
    "metrics/test_dcgm_promtool.py",
    "metrics/test_host_node_exporter.py",
    "metrics/test_nvidia_smi_replay.py",
    "metrics/test_sessions_prometheus.py",
    "metrics/test_slurm_prometheus.py",
    "notify/test_alertmanager.py",
    "notify/test_running.py",
    "owners/test_agent.py",
    "owners/test_churn.py",
    "page",
    "promql/test_differential.py",
    "promql/test_odd_queries.py",
    "promql/test_public_corpus.py",
    "promql/test_sample_pool.py",
    "query_engines/test_engine_clients.py",
    "render/test_compose_project.py",
    "render/test_image_files.py",
    "render/test_labs.py",
    "render/test_prometheus_files.py",
    "render/test_running.py",
    "render/test_systemd_lab.py",
    "render/test_systemd_units.py",
    "rules/templates/test_against_go.py",
    "rules/test_against_prometheus.py",
    "rules/test_healthy_machines.py",
    "rules/test_promtool.py",
    "rules/test_running.py",
    "rules/test_shipped_rules.py",
    "scrape/test_against_prometheus.py",
    "server/http/test_hostile.py",
    "server/login/test_private_file.py",
    "server/login/test_running.py",
    "slurm_lab",
    "sources/test_dcgm.py",
    "sources/test_nvidia_smi_command.py",
    "sources/test_nvidia_smi_source.py",
    "sources/test_nvml_peers.py",
    "sources/test_nvml_stuck_calls.py",
    "sources/test_nvml_trouble.py",
    "sources/test_old_driver.py",
    "store/test_kill.py",
    "terminal/test_in_a_terminal.py",
    "terminal/test_top_app.py",
    "test_engines.py",
    "test_fake_nvml.py",
    "test_how_to_add.py",
    "test_package.py",
    "wiring/test_live_readers.py",
    "wiring/test_serving.py",
)


def is_not_fast(path: Path) -> bool:
    name = path.relative_to(HERE).as_posix()
    return any(name == one or name.startswith(f"{one}/") for one in NOT_FAST)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that would be deselected are not even imported."""
    if "not not_fast" in (config.option.markexpr or "") and collection_path.is_relative_to(HERE):
        return is_not_fast(collection_path) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_not_fast(item.path):
            item.add_marker(pytest.mark.not_fast)
        if item.get_closest_marker("slow") and os.environ.get("SLOW") != "1":
            item.add_marker(pytest.mark.skip(reason="slow: run with SLOW=1"))
