"""Users' queries and alerts, and their corrected twins, in a real Prometheus that scraped two nodes."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings
from gpuscope.model.readings import Snapshot
from gpuscope.serve.exporter import Exporter
from tests.engines import running_prometheus
from tests.metrics.sessions_scene import GIB, first_node, second_node
from tests.recordings import recording
from tests.server.http.support import serving as serving_handler
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules/gpu-sessions.yml"
MEMORY_JOIN = """sum by (pod, namespace) (
  gpu_process_info{status="active"} * on(gpu,pid) group_left(gpu_memory) 
  gpu_process_info{status="active"}
)"""  # noqa: W291 - as users have it
Rows = dict[tuple[str, ...], float]


@contextmanager
def serving(snapshot: Snapshot) -> Iterator[str]:
    """Starts the agent's HTTP server with this snapshot; returns its address."""
    builders = [load_family(name).build(Settings()) for name in ("native", "sessions")]
    exporter = Exporter(builders, openmetrics=False, title="test")
    exporter.publish(snapshot)
    with serving_handler(exporter.handler()) as port:
        yield f"127.0.0.1:{port}"


@contextmanager
def prometheus_over(**nodes: Snapshot) -> Iterator[str]:
    with ExitStack() as stack:
        targets = [
            {"targets": [stack.enter_context(serving(snapshot))], "labels": {"instance": name}}
            for name, snapshot in nodes.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "gpuscope", "static_configs": targets}],
        }
        url = stack.enter_context(running_prometheus(json.dumps(config)))
        wait_for(lambda: len(rows(url, "gpu_total_sessions", "instance")) == len(nodes), "every node scraped")
        yield url


@pytest.fixture(scope="module")
def both() -> Iterator[str]:
    now = time.time()
    with prometheus_over(a=first_node(now), b=second_node(now)) as url:
        yield url


def ask(url: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
        return json.load(answer)["data"]


def rows(url: str, query: str, *labels: str) -> Rows:
    result = ask(url, "query", query=query)["result"]
    found = {tuple(row["metric"].get(name, "") for name in labels): float(row["value"][1]) for row in result}
    assert len(found) == len(result), "these labels do not tell the rows apart"
    return found


AS_USERS_HAVE_THEM: dict[str, tuple[tuple[str, ...], Rows]] = {
    "gpu_session_count": (
        ("instance", "gpu"),
        {
            ("a", "0_7_0"): 1, ("a", "0_12_0"): 0, ("a", "1"): 2, ("a", "2"): 0,
            ("b", "0"): 1, ("b", "1"): 1, ("b", "2"): 1, ("b", "3"): 0,
        },
    ),
    'gpu_process_info{gpu="0", status="active"}': (("instance", "pid"), {("b", "555"): 1}),
    "gpu_total_sessions": (("instance",), {("a",): 3, ("b",): 3}),
    "sum by (gpu) (gpu_session_count)": (
        ("gpu",), {("0_7_0",): 1, ("0_12_0",): 0, ("0",): 1, ("1",): 3, ("2",): 1, ("3",): 0},
    ),
    "(sum(gpu_session_count) / count(gpu_session_count)) * 100": ((), {(): 75}),
    "count(gpu_session_count == 0)": ((), {(): 3}),
    'gpu_process_info{status="idle"}': (("instance", "gpu", "pod"), {("b", "2", "notebook-x"): 1}),
}  # fmt: skip

CORRECTED: dict[str, tuple[tuple[str, ...], Rows]] = {
    "sum by (instance, gpu) (gpu_session_count)": AS_USERS_HAVE_THEM["gpu_session_count"],
    "100 * avg(gpu_session_count > bool 0)": ((), {(): 62.5}),
    'sum by (namespace, pod) (gpuscope_process_memory_bytes{pod!=""})': (
        ("namespace", "pod"),
        {
            ("ml", "mig-0"): 2 * GIB, ("ml", "train-0"): 8 * GIB, ("ml", "infer-1"): GIB,
            ("ml", "train-1"): 4 * GIB, ("hub", "notebook-x"): 4 * GIB,
        },
    ),
    'sum by (instance, namespace, pod) (gpu_process_memory_utilization{pod!=""})': (
        ("instance", "pod"),
        {
            ("a", "mig-0"): 40, ("a", "train-0"): 20, ("a", "infer-1"): 2.5, ("b", "train-1"): 10,
            ("b", "notebook-x"): 10,
        },
    ),
    "gpu_session_count == 0": (("instance", "gpu"), {("a", "0_12_0"): 0, ("a", "2"): 0, ("b", "3"): 0}),
    'count by (instance, gpu) (gpu_process_info) unless on (instance, gpu) gpu_process_info{status!="idle"}': (
        ("instance", "gpu"), {("b", "2"): 1},
    ),
    "gpu_process_memory_utilization and on (instance, gpu, pid, command) "
    "(gpu_process_memory_utilization offset 2h)": (("instance",), {}),
}  # fmt: skip
LONG_RUNNING = "time() - gpuscope_process_start_time_seconds > 7200 and gpuscope_process_active == 1"


@pytest.mark.engine("prometheus")
@pytest.mark.parametrize("query", [*AS_USERS_HAVE_THEM, *CORRECTED])
def test_a_query_on_two_nodes(both: str, query: str) -> None:
    labels, expected = (AS_USERS_HAVE_THEM | CORRECTED)[query]
    assert rows(both, query, *labels) == expected


@pytest.mark.engine("prometheus")
def test_the_memory_join_fails_on_two_nodes_and_counts_processes_on_one(both: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        ask(both, "query", query=MEMORY_JOIN)
    with raised.value as answer:
        assert b"many-to-many matching not allowed" in answer.read()
    with prometheus_over(a=first_node()) as alone:
        assert rows(alone, MEMORY_JOIN, "pod") == {("train-0",): 1, ("infer-1",): 1}, "processes, not memory"


@pytest.mark.engine("prometheus")
def test_long_running_processes_by_their_start(both: str) -> None:
    assert rows(both, LONG_RUNNING, "instance", "pod").keys() == {("a", "train-0")}


@pytest.mark.engine("prometheus")
def test_the_rules_run_unmodified_and_pend_as_the_docs_say(both: str) -> None:
    def states() -> dict[str, tuple[str, int, str]]:
        groups = ask(both, "rules")["groups"]
        return {
            rule["name"]: (rule["state"], len(rule["alerts"]), rule["health"])
            for group in groups
            for rule in group["rules"]
        }

    expected = {
        "HighGPUUtilization": ("inactive", 0, "ok"),
        "LongRunningGPUProcess": ("pending", 4, "ok"),  # every active process, at once
        "GPUsNearlyAllInUse": ("inactive", 0, "ok"),
        "GPUProcessRunsLong": ("firing", 1, "ok"),
        "GPUHeldIdle": ("pending", 1, "ok"),
        "GPUAllocatedUnused": ("inactive", 0, "ok"),
        "GPUTextfileOld": ("inactive", 0, "ok"),
    }
    # Each group is evaluated at a time of its own.
    wait_for(lambda: states() == expected, "the rules' states", states)


def test_the_docs_have_every_query_word_for_word() -> None:
    text = (ROOT / "docs/sessions.md").read_text("utf-8")
    for query in (*AS_USERS_HAVE_THEM, *CORRECTED, LONG_RUNNING, MEMORY_JOIN):
        assert f"`{query}`" in text or f"```promql\n{query}\n```" in text, query


def test_the_users_alerts_are_in_the_rules_word_for_word() -> None:
    seed = recording("seeds/003_*")
    rules = RULES.read_text("utf-8")
    lines = seed.read_text("utf-8").split("- alert: ")[1:]
    for alert in lines:
        for line in alert.split("```")[0].splitlines():
            if line.strip() and line.isascii() and not line.strip().startswith("#"):
                assert line.strip() in rules, line
