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
settings.load_profile("gpuscope")

HERE = Path(__file__).parent
NOT_FAST = (
    "cli/test_commands.py", "cli/test_findings_history.py", "cli/test_gone.py", "cli/test_server.py",
    "cli/test_up.py", "cli/test_user.py", "clients", "fake_nvml", "fuzz", "hostile", "integration",
    "integration_api", "load/test_load_command.py", "owners/test_churn.py",
    "metrics/test_dcgm_promtool.py", "metrics/test_host_node_exporter.py",
    "metrics/test_sessions_prometheus.py",
    "query_engines/test_engine_clients.py", "promql/test_odd_queries.py",
    "owners/test_agent.py", "page", "rules/templates/test_against_go.py", "rules/test_healthy_machines.py",
    "rules/test_shipped_rules.py",
    "promql/test_differential.py", "promql/test_public_corpus.py",
    "promql/test_sample_pool.py", "scrape/test_against_prometheus.py", "server/http/test_hostile.py",
    "rules/test_against_prometheus.py", "rules/test_promtool.py", "rules/test_running.py",
    "server/login/test_running.py", "sources/test_new_source.py", "sources/test_nvml_peers.py",
    "sources/test_nvml_trouble.py", "sources/test_nvml_stuck_calls.py", "store/test_kill.py",
    "doctor/test_server_reachability.py", "sources/test_old_driver.py",
    "render/test_compose_project.py", "render/test_image_files.py", "render/test_labs.py",
    "render/test_prometheus_files.py", "render/test_running.py", "render/test_systemd_lab.py",
    "render/test_systemd_units.py",
    "test_engines.py", "test_fake_nvml.py",
    "test_package.py", "wiring/test_serving.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(HERE).as_posix()
        if any(path == one or path.startswith(f"{one}/") for one in NOT_FAST):
            item.add_marker(pytest.mark.not_fast)
        if item.get_closest_marker("slow") and os.environ.get("SLOW") != "1":
            item.add_marker(pytest.mark.skip(reason="slow: run with SLOW=1"))
