from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.own_metrics_thread import read_scrape_config
from gpuscope.cli.wiring.run_over_engine import build_engine_connection
from gpuscope.serve.api.proxy import EngineStats


def test_an_engine_with_prefix_tenant_and_credentials(tmp_path: Path) -> None:
    http = tmp_path / "http.yml"
    http.write_text("http_headers: {X-Extra: {values: [one]}}\n")
    given = "https://u:p@mimir:8080/prometheus/"
    connection = build_engine_connection(
        Settings(store=given, store_tenant="team", store_http_config=str(http)), EngineStats()
    )
    assert connection.url == "https://mimir:8080/prometheus"
    assert dict(connection.http.headers) == {
        "X-Extra": "one",
        "X-Scope-OrgID": "team",
        "THANOS-TENANT": "team",
        "authorization": "Basic dTpw",
    }
    assert "Basic" not in repr(connection)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(store="prometheus:9090"), "--store prometheus:9090"),
        (Settings(store="http://x", store_tenant="a\nb"), "--store-tenant"),
        (Settings(store="http://x", store_http_config="/nosuch/file.yml"), "/nosuch/file.yml"),
    ],
)
def test_a_wrong_engine_is_told(settings: Settings, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build_engine_connection(settings, EngineStats())


def test_targets_without_a_file_have_one_job() -> None:
    read = read_scrape_config(Settings(targets="a:1,b:2", scrape_interval=5.0))
    (job,) = read.jobs
    assert (job.name, job.interval, job.timeout) == ("gpuscope", 5.0, 5.0)
    assert job.static[0].targets == ("a:1", "b:2")


def test_neither_is_fine() -> None:
    assert read_scrape_config(Settings()).jobs == ()
