"""slurmrestd and slurmctld's own pages, from recorded answers: the same cluster as the commands show."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.sources.slurm.metrics_pages import SlurmMetricsPages
from gpuscope.agent.sources.slurm.restd import SlurmRest, rest_headers
from gpuscope.agent.sources.slurm.restd_json import long_state, number, to_job, to_node, to_placements
from gpuscope.agent.sources.slurm.slurm_commands import SlurmCommands
from gpuscope.agent.sources.slurm.slurm_source import Backend, SlurmSource
from gpuscope.base.errors import SourceError
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Reading, Snapshot
from gpuscope.model.readings.slurm import Gres, JobPlacement, SlurmFailure, SlurmState
from tests.fake_slurm import VERSIONS, fake_clients
from tests.fake_slurm.rest_server import API, metrics_answers, rest_answers, serving


def read(backend: Backend) -> Reading:
    return SlurmSource(backend, interval=15.0, slow_interval=60.0).read(frozenset())


def state_of(backend: Backend) -> SlurmState:
    state = read(backend).slurm
    assert state is not ABSENT
    assert state.up, state.why
    return state


def samples(state: SlurmState) -> dict[str, str]:
    snapshot = Snapshot(node="master", taken_at=0.0, slurm=state)
    text = encode_text(SlurmBuilder().to_families(snapshot)).decode()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("version", VERSIONS)
def test_slurmrestd_over_its_socket(tmp_path: Path, version: str) -> None:
    asked: list[tuple[str, str]] = []
    with serving(rest_answers(version), asked, tmp_path / "s") as address:
        state = state_of(SlurmRest(address, 60.0))
    assert str(state.version).startswith(version)
    assert asked[0][0] == "/slurm/v0.0.45/ping"  # the newest first
    assert all(query.success for query in state.queries)
    assert (state.shares is ABSENT) == (version == "22.05")
    assert state.placements is not ABSENT
    assert [(p.node, p.gres) for p in state.placements[3]] == [
        ("gpu1", (Gres("gpu", "a100", 1, (2,)),)),
        ("gpu2", (Gres("gpu", "a100", 1, (3,)),)),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_it_shows_what_the_commands_show(tmp_path: Path, version: str) -> None:
    """The recordings are minutes apart: what does not change within minutes is the same."""
    with serving(rest_answers(version), []) as address:
        by_rest = samples(state_of(SlurmRest(address, 60.0)))
    by_commands = samples(state_of(SlurmCommands(str(fake_clients(tmp_path / "bin", version)), 60.0)))
    for name in (
        "slurm_gpus_total", "slurm_gpus_alloc", "slurm_cpus_total", "slurm_nodes_drain",
        "slurm_nodes_mix", 'slurm_account_jobs_running{account="ml"}',
        'slurm_partition_jobs_pending{partition="gpu"}', 'slurm_partition_cpus_total{partition="gpu"}',
        'slurm_node_mem_total{node="gpu3",status="draining"}', "slurm_queue_pending_dependency",
        'slurm_node_cpu_other{node="gpu4",status="down*"}', "slurm_queue_suspended",
    ):  # fmt: skip
        assert by_rest[name] == by_commands[name], name


def test_the_token_is_read_again_for_each_round(tmp_path: Path) -> None:
    token = tmp_path / "token"
    asked: list[tuple[str, str]] = []
    with serving(rest_answers("26.05"), asked) as address:
        source = SlurmSource(
            SlurmRest(address, 60.0, token_file=str(token_file(token, "one"))), interval=0.1, slow_interval=0.1
        )
        source.read(frozenset())
        token_file(token, "SLURM_JWT=two")
        source.read(frozenset())
    assert {sent for _, sent in asked} == {"one", "two"}


def token_file(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    return path


def jwt(**claims: object) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.signature"


@pytest.mark.parametrize(
    ("token", "user", "named"),
    [
        (jwt(exp=1, sun="games"), "", "games"),
        (jwt(exp=1, sun="games"), "news", "news"),
        (jwt(sub="games"), "", None),
        (jwt(sun="a\r\nX-Other: 1"), "", None),
        (jwt(sun=["games"]), "", None),
        ("not a token", "", None),
        ("a.bm8.c", "", None),
    ],
)
def test_the_user_is_read_from_the_token(token: str, user: str, named: str | None) -> None:
    """slurmrestd 22.05 refuses a token without its user."""
    assert rest_headers("", user, {"SLURM_JWT": token}).get("X-SLURM-USER-NAME") == named


def test_an_expired_token_is_named_if_slurmrestd_refuses() -> None:
    api = API["22.05"]
    why = b'{"meta":{},"errors":[{"description":"slurmctld config is unable to load","error_number":-1}]}'
    refused = {f"/slurm/{api}/ping": why}
    with serving(refused, [], status=500) as address, pytest.MonkeyPatch.context() as environment:
        environment.setenv("SLURM_JWT", jwt(exp=1000, sun="games"))
        with pytest.raises(SourceError, match=r"answered 500: slurmctld config is unable to load") as fresh:
            SlurmRest(address, 60.0, now=lambda: 999.0).ping()
        assert "expired" not in str(fresh.value)
        with pytest.raises(SourceError, match=r"JWT for slurmrestd expired 60 s ago .*unable to load"):
            SlurmRest(address, 60.0, now=lambda: 1060.0).ping()


def test_a_job_whose_gpus_slurm_does_not_know() -> None:
    row = {"nodes": "gpu1", "gres_detail": ["gpu:a100:0(IDX:)"]}
    assert to_placements(row, 10) == ()
    assert to_placements({"nodes": "cpu1", "gres_detail": []}, 10) == (JobPlacement("cpu1", ()),)


@pytest.mark.parametrize(
    ("limit", "state", "ends_at"),
    [
        (None, "RUNNING", ABSENT),  # 22.05
        ({"set": True, "infinite": True, "number": 0}, "SUSPENDED", ABSENT),
        ({"set": True, "infinite": False, "number": 5}, "RUNNING", 400),
        (None, "COMPLETED", 400),
    ],
)
def test_a_job_without_a_time_limit_has_no_end(limit: object, state: str, ends_at: object) -> None:
    job = to_job({"job_id": 7, "job_state": [state], "start_time": 100, "end_time": 400, "time_limit": limit})
    assert job is not None
    assert job.ends_at == ends_at


def test_a_node_in_maintenance_has_the_flag_that_the_commands_show() -> None:
    node = to_node({"name": "gpu1", "state": ["IDLE", "MAINTENANCE", "RESERVED"]})
    assert node is not None
    assert (node.flags, node.long_state) == ({"maint", "reserved"}, "maint")


def test_no_api_that_is_known() -> None:
    with serving({}, []) as address, pytest.raises(SourceError, match=r"has no API between v0\.0\.37 and"):
        SlurmRest(address, 60.0).ping()


def test_nothing_listens(tmp_path: Path) -> None:
    reading = read(SlurmRest(str(tmp_path / "none"), 60.0))
    assert "nothing answers at" in reading.down


@pytest.mark.parametrize(
    ("path", "body", "why", "failure"),
    [
        ("jobs", b'{"jobs":[{"job_id":1', "cannot be read, or was cut off", SlurmFailure.UNUSABLE_ANSWER),
        ("jobs", b'{"jobs":{}}', "has no list of jobs", SlurmFailure.UNUSABLE_ANSWER),
        (
            "nodes",
            b'{"errors":[{"description":"Protocol authentication error"}]}',
            "authentication error",
            SlurmFailure.OTHER,
        ),
        ("nodes", b"[]", "it is not an object", SlurmFailure.UNUSABLE_ANSWER),
        ("diag", b"{}", "has no statistics", SlurmFailure.UNUSABLE_ANSWER),
    ],
)
def test_answers_that_cannot_be_used(path: str, body: bytes, why: str, failure: SlurmFailure) -> None:
    answers = {**rest_answers("26.05"), f"/slurm/{API['26.05']}/{path}": body}
    with serving(answers, []) as address:
        state = state_of(SlurmRest(address, 60.0))
    (query,) = (query for query in state.queries if query.name == path)
    assert why in query.why
    assert query.failure is failure
    assert state.reservations is not ABSENT


def test_a_dead_controller_behind_a_living_slurmrestd() -> None:
    body = b'{"pings":[{"hostname":"master","pinged":"DOWN","responding":false}]}'
    answers = {**rest_answers("26.05"), f"/slurm/{API['26.05']}/ping": body}
    with serving(answers, []) as address:
        assert "slurmctld is down (master); systemctl" in read(SlurmRest(address, 60.0)).down


def test_a_refused_token_is_not_taken_for_a_dead_controller() -> None:
    """24.11 answers a ping with a token that slurmctld refuses like one of a dead slurmctld."""
    body = b'{"pings":[{"hostname":"master","pinged":"DOWN","responding":false}]}'
    answers = {**rest_answers("24.11"), f"/slurm/{API['24.11']}/ping": body}
    with serving(answers, []) as address, pytest.MonkeyPatch.context() as environment:
        environment.setenv("SLURM_JWT", jwt(exp=1000, sun="games"))
        for now, why, failure in (
            (999.0, "slurmctld is down (master), or it refuses the JWT", SlurmFailure.DOWN_OR_TOKEN_REFUSED),
            (1060.0, "the JWT for slurmrestd expired 60 s ago", SlurmFailure.TOKEN_REFUSED),
        ):
            reading = read(SlurmRest(address, 60.0, now=lambda now=now: now))  # type: ignore[misc]
            assert why in reading.down
            assert reading.slurm is not ABSENT
            assert reading.slurm.failure is failure


def test_a_token_that_slurmrestd_itself_refuses() -> None:
    refused = {f"/slurm/{api}/ping": b'{"errors":[{"error":"Authentication failure"}]}' for api in API.values()}
    with serving(refused, [], status=401) as address:
        state = read(SlurmRest(address, 60.0)).slurm
    assert state is not ABSENT
    assert "answered 401: Authentication failure" in state.why
    assert state.failure is SlurmFailure.TOKEN_REFUSED


def test_numbers_of_old_and_new_versions() -> None:
    assert number(7) == 7
    assert number({"set": True, "infinite": False, "number": 7}) == 7
    for nothing in (
        None,
        True,
        "7",
        4294967294,
        {"set": False, "number": 0},
        {"infinite": True, "number": 1},
        {},
    ):
        assert number(nothing) is ABSENT


def test_long_states() -> None:
    assert long_state("mixed", frozenset({"drain"})) == "draining"
    assert long_state("idle", frozenset({"drain", "not_responding"})) == "drained*"
    assert long_state("idle", frozenset({"planned"})) == "planned"
    assert long_state("mixed", frozenset({"planned"})) == "mixed-"


def test_slurmctlds_own_pages() -> None:
    with serving(metrics_answers(), []) as address:
        state = state_of(SlurmMetricsPages(address, 60.0))
    found = samples(state)
    assert found["slurm_gpus_total"] == "20"
    assert found["slurm_gpus_alloc"] == "11"
    assert found["slurm_queue_pending"] == "112"
    assert found['slurm_user_jobs_running{user="alice"}'] == "7"
    assert found["slurm_nodes_down"] == "1"
    assert found['slurm_node_mem_total{node="gpu1",status=""}'] == "64000"
    for name in ("slurm_queue_pending_dependency", "slurm_cpus_idle", "slurm_cpus_other", "slurm_nodes_err"):
        assert name not in found, name  # these pages do not have it: absent, not 0


def test_pages_that_are_switched_off() -> None:
    with serving({"/metrics": b"", "/metrics/jobs": b""}, []) as address:
        state = state_of(SlurmMetricsPages(address, 60.0))
    whys = {query.name: query.why for query in state.queries}
    assert "MetricsType is not set, or PrivateData is" in whys["jobs"]
