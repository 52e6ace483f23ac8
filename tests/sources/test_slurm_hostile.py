"""A slurmrestd that lies: answers that are deep, huge, endless, slow, or have values of the wrong kind.

What it answers for one request must not take the other parts away, nor memory, nor make a label so long that
the whole agent is refused when it is scraped.
"""

from __future__ import annotations

import contextlib
import json
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.sources.slurm.gres import MAX_CHARACTERS, MAX_PLACEMENTS, gres_of_tres, parse_gres
from gpuscope.agent.sources.slurm.metrics_pages import SlurmMetricsPages, parse_page
from gpuscope.agent.sources.slurm.restd import MAX_ROWS, MAX_VALUE_CHARACTERS, SlurmRest, read_rows
from gpuscope.agent.sources.slurm.slurm_source import SlurmSource
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.model.readings.slurm import SlurmState
from tests.fake_slurm.rest_server import API, metrics_answers, rest_answers, serving
from tests.local_server import QuietHandler, serving_http

JOBS, DIAG = (f"/slurm/{API['26.05']}/{name}" for name in ("jobs", "diag"))
IDLE = {DIAG: b'{"statistics": {"jobs_pending": 0, "jobs_running": 0}}'}
"""slurmctld counts no jobs: a list that lacks some it counts is refused."""
JOB = {"job_id": 1, "job_state": ["RUNNING"], "user_name": "ann", "cpus": 4, "nodes": "n1", "partition": "p"}
MIB = 1 << 20


def jobs(*rows: object) -> bytes:
    return json.dumps({"jobs": rows}).encode()


def state_with(body: bytes) -> SlurmState:
    with serving({**rest_answers("26.05"), **IDLE, JOBS: body}, []) as address:
        return read(address, 60.0)


def read(address: str, timeout_seconds: float, max_body_bytes: int = 64 * MIB) -> SlurmState:
    backend = SlurmRest(address, timeout_seconds, max_body_bytes=max_body_bytes)
    state = SlurmSource(backend, interval=15.0, slow_interval=60.0).read(frozenset()).slurm
    assert state is not ABSENT
    assert state.up, state.why
    assert state.nodes is not ABSENT, "the other requests are answered as before"
    return state


def why_jobs_failed(state: SlurmState) -> str:
    assert state.jobs is ABSENT
    return next(query.why for query in state.queries if query.name == "jobs")


def sample_lines(state: SlurmState) -> list[str]:
    snapshot = Snapshot(node="master", taken_at=0.0, slurm=state)
    families = [*SlurmMetrics().to_families(snapshot), *SlurmBuilder().to_families(snapshot)]
    return [line for line in encode_text(families).decode().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"jobs":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deep"),
        (b'{"jobs":' * 100_000, "nested too deep"),
        (b'{"jobs":[' + b"[]," * MAX_ROWS + b"[]]}", f"more than {MAX_ROWS} rows"),
        (b'{"jobs":[' + b"[]," * 10 + b'"' + b"x" * 3 * MAX_VALUE_CHARACTERS + b'"]}', "a value of more than"),
        (b'{"meta":[' + b"[]," * MAX_VALUE_CHARACTERS + b"[]]}", "a value of more than"),
        (jobs() + b"[]", "more text after the object"),
        (b" " * (65 * MIB), "larger than"),
        (b"\xff\xfe", "cannot be read"),
    ],
    ids=["lists", "objects", "rows", "a text", "other values", "more", "bytes", "not UTF-8"],
)
def test_an_answer_that_cannot_be_read_takes_only_its_own_part(body: bytes, why: str) -> None:
    assert why in why_jobs_failed(state_with(body))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 4000, "1e300", "-1e300"])
def test_a_number_that_is_none_is_absent(number: str) -> None:
    fields = ("cpus", "node_count", "start_time", "submit_time", "end_time", "array_job_id", "het_job_id")
    bad = "{" + ", ".join(f'"{field}": {number}' for field in fields)
    body = (
        f'{{"jobs": [{bad}, "job_id": 7, "job_state": "RUNNING"}}, {{"job_id": {number}, "job_state": "R"}}]}}'
    )
    state = state_with(body.encode())
    assert state.jobs is not ABSENT
    assert [(job.job_id, job.cpus, job.started_at) for job in state.jobs] == [(7, 0, ABSENT)]
    for line in sample_lines(state):
        assert len(line) < 200, line[:200]


def test_long_texts_do_not_become_long_labels() -> None:
    row = {
        **JOB, "job_state": ["S" * 100_000], "partition": "P" * 100_000, "user_name": "u" * 100_000,
        "tres_alloc_str": "gres/gpu:" + "m" * 100_000 + "=2", "array_task_string": "1," * 100_000,
    }  # fmt: skip
    many = {**JOB, "job_id": 2, "partition": ",".join(f"p{n}" for n in range(200_000))}
    lines = sample_lines(state_with(jobs(row, many, {**row, "job_id": 3, "job_state": "RUNNING"})))
    assert max(map(len, lines)) < 4_000, "a label value of 64 KiB would make the scrape of the agent fail"
    assert len(lines) < 30_000


def test_hostlists_of_many_jobs_share_one_limit() -> None:
    rows = [{**JOB, "job_id": number, "nodes": f"n{number}-[0-99998]"} for number in range(8)]
    state = state_with(jobs(*rows, {**JOB, "job_id": 99}))
    assert state.placements is not ABSENT
    kept = [len(placed) for placed in state.placements.values()]
    assert MAX_PLACEMENTS // 2 < sum(kept) <= MAX_PLACEMENTS + len(rows)


def test_long_gres_texts_are_not_kept_by_the_caches() -> None:
    tracemalloc.start()
    try:
        for number in range(50):
            assert parse_gres(f"gpu:{'m' * MAX_CHARACTERS}{number}" * 25) == ()
            assert gres_of_tres(f"gres/gpu:{'m' * MAX_CHARACTERS}{number}=1," * 25) == ()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * MIB


@contextmanager
def endless(piece: bytes) -> Iterator[str]:
    """A slurmrestd whose list of jobs never ends."""
    answers = rest_answers("26.05")

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if self.path != JOBS:
                self.answer(answers.get(self.path, b""), status=200 if self.path in answers else 404)
                return
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(piece)

    handler: type[BaseHTTPRequestHandler] = Handler
    with serving_http(handler) as port:
        yield f"http://127.0.0.1:{port}"


def test_an_endless_answer_ends_at_the_limit() -> None:
    with endless(b" " * 65536) as address:
        assert f"larger than {8 * MIB} bytes" in why_jobs_failed(read(address, 60.0, 8 * MIB))


@pytest.mark.parametrize("offset", range(0, 120, 7))
def test_rows_are_read_across_the_pieces_of_the_text(offset: int) -> None:
    """The first row is so long that the first piece ends somewhere in the others."""
    rows = [
        "x" * ((1 << 18) - offset), {"a": [1, 2.5, -3e5, "é😀\\\"\n", None, True], "b": {}}, [], 123456789, "",
    ]  # fmt: skip
    document = {"before": 12345, "jobs": rows * 3, "after": {"c": [1]}, "errors": []}
    for body in (json.dumps(document), json.dumps(document, indent=4, ensure_ascii=False)):
        found: list[object] = []
        others = read_rows(body.encode(), "jobs", found.append)
        assert found == document["jobs"]
        assert others == {**document, "jobs": True}


def test_numbers_of_a_metrics_page() -> None:
    page = 'a{node="n1"} NaN\na{node="n2"} +Inf\na{node="n3"} 1e300\na{node="n4"} 5\n# a 6\nb 7'
    assert parse_page(page) == {"a": {"n4": 5.0}, "b": {"": 7.0}}
    assert max(len(name) for name in parse_page(f'a{{user="{"u" * 100_000}"}} 1')["a"]) == 256


OWNERS = "/metrics/jobs-users-accts"


def state_of_pages(pages: dict[str, bytes]) -> SlurmState:
    with serving({**metrics_answers(), **pages}, []) as address:
        backend = SlurmMetricsPages(address, 60.0)
        state = SlurmSource(backend, interval=15.0, slow_interval=60.0).read(frozenset()).slurm
    assert state is not ABSENT
    assert all(query.success for query in state.queries)
    return state


@pytest.mark.parametrize(
    "account",
    [
        'x"} 1\nslurm_jobs_running 640\nslurm_user_jobs_running{username="zed"} 77\ny{a="',
        'x"} 1\n# TYPE slurm_user_jobs_running gauge\nslurm_user_jobs_running{username="zed"} 77\n# "',
        'other"} 640\n# ',
        'ml"} 640\n\n',
    ],
)
def test_the_name_of_an_account_forges_no_line_of_a_page(account: str) -> None:
    """As slurmctld 26.05 prints it, without slurmdbd: the name as it is, in a series of every state."""
    page = metrics_answers()[OWNERS].decode()
    states = re.findall(r'^slurm_account_jobs_(\w+)\{account="ml"\}.*\n', page, re.MULTILINE)
    for state in states:
        real = f'slurm_account_jobs_{state}{{account="ml"}}'
        forged = f'slurm_account_jobs_{state}{{account="{account}"}} 0\n'
        page = page.replace(real, forged + real)
    honest, found = state_of_pages({}), state_of_pages({OWNERS: page.encode()})
    assert ABSENT not in (honest.job_counts, found.job_counts)
    assert honest.job_counts.by_user, "where nothing is forged they are counted"  # type: ignore[union-attr]
    assert (found.job_counts.by_user, found.job_counts.gpus_by_account) == ({}, {})  # type: ignore[union-attr]
    for part in ("by_state", "by_partition"):
        assert getattr(found.job_counts, part) == getattr(honest.job_counts, part)
    lines = sample_lines(found)
    assert "slurm_queue_running 11" in lines
    assert not [line for line in lines if line.endswith(" 640") or "zed" in line]


def future_page(*, others: int) -> bytes:
    """With two nodes whose state is FUTURE, and `others` that are down and look the same."""
    page = metrics_answers()["/metrics/nodes"].decode().replace("slurm_nodes_future 0", "slurm_nodes_future 2")
    page = page.replace('memory_free_bytes{node="gpu4"} 0', f'memory_free_bytes{{node="gpu4"}} {1 - others}')
    name = "longname-gpu-node-number-0005"
    page = page.replace(f'memory_free_bytes{{node="{name}"}} 0', f'memory_free_bytes{{node="{name}"}} 1')
    for node in ("fut1", "fut2"):
        for metric, value in (("cpus", 8), ("cpus_alloc", 0), ("memory_free_bytes", 0), ("memory_bytes", 10)):
            page += f'slurm_node_{metric}{{node="{node}"}} {value}\n'
    return page.encode()


def test_nodes_of_the_future_are_not_counted() -> None:
    """sinfo does not show them. slurmctld's page has their CPUs, and says only how many nodes they are."""
    everything = sample_lines(state_of_pages({}))
    assert "slurm_cpus_total 96" in everything
    found = sample_lines(state_of_pages({"/metrics/nodes": future_page(others=0)}))
    assert "slurm_cpus_total 96" in found
    assert not [line for line in found if "fut1" in line]
    unclear = sample_lines(state_of_pages({"/metrics/nodes": future_page(others=1)}))
    assert not [line for line in unclear if line.startswith(("slurm_cpus", "slurm_node_"))]
    assert "slurm_nodes_down 1" in unclear
