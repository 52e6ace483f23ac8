"""The official client of the Model Context Protocol asks a demo, over HTTP and over `gpuscope mcp`.

Every answer is valid by its own schema, and every number in it is the API's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from gpuscope.serve.mcp.tools import TOOLS
from tests.cli.test_commands import running
from tests.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Demo:
    url: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    data = tmp_path_factory.mktemp("data")
    argv = ("up", "--demo", "--demo-nodes", "2", "--data", str(data), "--listen", "127.0.0.1:0")
    with running(*argv, until=r"gpuscope is at (http://\S+)") as (_, found):
        started = Demo(found[1])
        wait_for(
            lambda: not started.get("/api/findings?since=4h")["coverage"]["missing"], "the past is filled in"
        )
        wait_for(lambda: not started.get("/api/live")["not_known"], "every check is evaluated")
        yield started


def ask(target: Any, *calls: tuple[str, dict[str, Any]], mode: str = "auto") -> list[Any]:
    async def run() -> list[Any]:
        async with Client(target, mode=mode) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert listed.keys() == TOOLS.keys()
            results: list[Any] = []
            for name, arguments in calls:
                jsonschema.validate(arguments, listed[name].input_schema)
                rows: list[Any] = []
                offset = 0
                while offset is not None:
                    result = await client.call_tool(name, {**arguments, "offset": offset})
                    assert not result.is_error, result.content
                    data = result.structured_content
                    jsonschema.validate(data, listed[name].output_schema)
                    assert data["simulated"]
                    assert "Simulated data of a demo." in str(result.content[0])
                    assert len(json.dumps(data)) < 32_768
                    rows += data[TOOLS[name].key]
                    offset = data["next_offset"]
                results.append({**data, TOOLS[name].key: rows})
            return results

    return asyncio.run(run())


def a_job(demo: Demo) -> str:
    return str(next(gpu["jobs"][0] for gpu in demo.get("/api/live")["gpus"] if gpu.get("jobs")))


QUESTIONS: dict[str, tuple[str, Callable[[Demo], dict[str, Any]], Callable[[Demo, Any], tuple[Any, Any]]]] = {
    "how many GPUs": (
        "fleet_summary",
        lambda demo: {},
        lambda demo, data: (data["counts"]["gpus"], demo.get("/api/live")["counts"]["gpus"]),
    ),
    "how many units": (
        "fleet_summary",
        lambda demo: {},
        lambda demo, data: (
            sum(sum(node["gpus_by_state"].values()) for node in data["nodes"]),
            len(demo.get("/api/live")["gpus"]),
        ),
    ),
    "which nodes": (
        "fleet_summary",
        lambda demo: {},
        lambda demo, data: (
            [node["node"] for node in data["nodes"]],
            [node["name"] for node in demo.get("/api/live")["nodes"]],
        ),
    ),
    "what is wrong": (
        "findings",
        lambda demo: {},
        lambda demo, data: (
            {finding["id"] for finding in data["findings"]},
            {finding["id"] for finding in demo.get("/api/findings")["findings"]},
        ),
    ),
    "what is wrong on one node": (
        "findings",
        lambda demo: {"node": "gpu-a01"},
        lambda demo, data: (
            {finding["id"] for finding in data["findings"]},
            {f["id"] for f in demo.get("/api/findings")["findings"] if f["node"] == "gpu-a01"},
        ),
    ),
    "what one kind is": (
        "findings",
        lambda demo: {"kind": "held_idle"},
        lambda demo, data: (
            {finding["id"] for finding in data["findings"]},
            {f["id"] for f in demo.get("/api/findings")["findings"] if f["kind"] == "held_idle"},
        ),
    ),
    "what was wrong": (
        "findings",
        lambda demo: {"since": "4h"},
        lambda demo, data: (
            [finding["kind"] for finding in data["findings"]],
            [finding["kind"] for finding in demo.get("/api/findings?since=4h")["findings"]],
        ),
    ),
    "who uses GPUs": (
        "who_uses",
        lambda demo: {},
        lambda demo, data: (data["total"], sum(gpu["in_use"] for gpu in demo.get("/api/live")["gpus"])),
    ),
    "who uses a node": (
        "who_uses",
        lambda demo: {"node": "gpu-a02"},
        lambda demo, data: (
            {gpu["uuid"] for gpu in data["gpus"]},
            {g["uuid"] for g in demo.get("/api/live")["gpus"] if g["in_use"] and g["node"] == "gpu-a02"},
        ),
    ),
    "what a job has": (
        "who_uses",
        lambda demo: {"job": a_job(demo)},
        lambda demo, data: (
            {gpu["uuid"] for gpu in data["gpus"]},
            {g["uuid"] for g in demo.get("/api/live")["gpus"] if a_job(demo) in g.get("jobs", ())},
        ),
    ),
    "what nobody has": (
        "who_uses",
        lambda demo: {"user": "nobody-at-all"},
        lambda demo, data: (data["total"], 0),
    ),
    "which GPUs are free": (
        "free_gpus",
        lambda demo: {},
        lambda demo, data: (data["total"], demo.get("/api/live")["counts"]["free"]),
    ),
    "four free ones": (
        "free_gpus",
        lambda demo: {"count": 100},
        lambda demo, data: (data["gpus"], []),
    ),
    "a report by user": (
        "usage_report",
        lambda demo: {"by": "user", "since": "2026-01-01", "until": "2026-01-02"},
        lambda demo, data: (
            data["invariant"],
            demo.get("/api/report?by=user&since=2026-01-01&until=2026-01-02")["invariant"],
        ),
    ),
    "a receipt": (
        "job_receipt",
        lambda demo: {"id": a_job(demo)},
        lambda demo, data: (
            {gpu["uuid"] for gpu in data["gpus"]},
            {gpu["uuid"] for gpu in demo.get(f"/api/job?id={a_job(demo)}")["gpus"]},
        ),
    ),
    "whose job it is": (
        "job_receipt",
        lambda demo: {"id": a_job(demo)},
        lambda demo, data: (data["receipt"]["user"], demo.get(f"/api/job?id={a_job(demo)}")["user"]),
    ),
    "a GPU's past": (
        "gpu_history",
        lambda demo: {"gpu": "gpu-a01:0", "metric": "power_watts", "since": "1h"},
        lambda demo, data: (
            data["average"],
            pytest.approx(sum(point["value"] for point in data["points"]) / data["total"]),
        ),
    ),
    "a query": (
        "promql",
        lambda demo: {"query": "count(gpuscope_gpu_info)"},
        lambda demo, data: (
            data["result"][0]["value"][1],
            demo.get("/api/v1/query?query=count(gpuscope_gpu_info)")["data"]["result"][0]["value"][1],
        ),
    ),
    "a query over time": (
        "promql",
        lambda demo: {"query": "vector(1)", "start": "100", "end": "160", "step": "60"},
        lambda demo, data: (data["result"][0]["values"], [[100, "1"], [160, "1"]]),
    ),
    "what an XID means": (
        "explain",
        lambda demo: {"name": "79"},
        lambda demo, data: (data["title"].startswith("XID 79"), True),
    ),
    "where a state was seen": (
        "explain",
        lambda demo: {"name": "busy"},
        lambda demo, data: (
            data["total"],
            int(
                demo.get("/api/v1/query?query=count(gpuscope_gpu_busy_seconds_total%3E0)")["data"]["result"][0][
                    "value"
                ][1]
            ),
        ),
    ),
    "what changed": (
        "what_changed",
        lambda demo: {"since": "3h"},
        lambda demo, data: (round(data["until"] - data["since"]), 3 * 3600),
    ),
}


def test_twenty_questions_have_the_numbers_of_the_api(demo: Demo) -> None:
    calls = [(name, arguments(demo)) for name, arguments, _ in QUESTIONS.values()]
    answers = ask(f"{demo.url}/mcp", *calls)
    assert len(QUESTIONS) >= 20
    assert {name for name, _ in calls} == TOOLS.keys()
    for (question, (_, _, compare)), data in zip(QUESTIONS.items(), answers, strict=True):
        answer, expected = compare(demo, data)
        assert answer == expected, question


def test_a_client_that_begins_with_a_handshake(demo: Demo) -> None:
    (summary,) = ask(f"{demo.url}/mcp", ("fleet_summary", {}), mode="legacy")
    assert summary["counts"]["gpus"] == 16


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_starts_a_program(demo: Demo, mode: str) -> None:
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "gpuscope", "mcp", "--server", demo.url]
    )
    (summary,) = ask(stdio_client(program), ("fleet_summary", {}), mode=mode)
    assert summary["counts"]["gpus"] == 16


def test_resources_are_listed_and_read(demo: Demo) -> None:
    async def read() -> dict[str, str]:
        async with Client(f"{demo.url}/mcp") as client:
            listed = (await client.list_resources()).resources
            return {
                str(one.uri): (await client.read_resource(str(one.uri))).contents[0].model_dump()["text"]
                for one in listed
            }

    texts = asyncio.run(read())
    assert "gpuscope_gpu_utilization_ratio" in texts["gpuscope://metrics"]
    rules = json.loads(texts["gpuscope://rules"])
    assert {group["name"] for group in rules["groups"]} == {
        group["name"] for group in demo.get("/api/v1/rules")["data"]["groups"]
    }


def test_a_page_of_another_site_cannot_ask(demo: Demo) -> None:
    request = urllib.request.Request(
        f"{demo.url}/mcp", b"{}", {"origin": "https://evil.example", "content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    with refused.value as answer:
        assert answer.status == 403


def test_the_program_says_that_no_server_answers() -> None:
    line = '{"jsonrpc":"2.0","id":5,"method":"ping"}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    command = [sys.executable, "-m", "gpuscope", "mcp", "--server", "http://127.0.0.1:9"]
    done = subprocess.run(command, input=line, capture_output=True, text=True, timeout=60, check=True)
    (answer,) = [json.loads(text) for text in done.stdout.splitlines()]
    assert answer["id"] == 5
    assert "127.0.0.1:9" in answer["error"]["message"]
