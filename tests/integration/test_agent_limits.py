"""An agent exports the limits of its listener and how often they were reached; a stand-in does not."""

from __future__ import annotations

from gpuscope.base.limits import limit_names
from tests.integration.agent_process import OPENMETRICS, running_agent, to_series


def test_a_refused_request_is_counted_in_the_agents_metrics() -> None:
    head_limit = "max_request_head_bytes"
    with running_agent("--source", "demo", "--max-request-head-bytes", "2KiB") as agent:
        series = agent.until(lambda series: f'gpuscope_limit{{limit="{head_limit}"}}' in series)
        shown = {name for name in series if name.startswith("gpuscope_limit{")}
        assert shown == {f'gpuscope_limit{{limit="{name}"}}' for name in limit_names("http")}
        assert series[f'gpuscope_limit{{limit="{head_limit}"}}'] == 2048
        reached = f'gpuscope_limit_reached_total{{limit="{head_limit}"}}'
        assert series[reached] == 0
        status, _ = agent.get("/metrics", padding="x" * 4096)
        assert status == 431
        agent.until(lambda series: series[reached] == 1)
        assert reached in to_series(agent.text(OPENMETRICS))


def test_a_stand_in_does_not_export_limits() -> None:
    with running_agent("--source", "demo", "--as", "dcgm-exporter") as agent:
        series = agent.until(lambda series: any(name.startswith("DCGM_FI_DEV_GPU_TEMP{") for name in series))
        assert not any(name.startswith("gpuscope_") for name in series)
