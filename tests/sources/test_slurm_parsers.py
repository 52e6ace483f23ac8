"""Slurm's text: hostlists, GRES and TRES, values, records; examples of real clusters and properties."""

from __future__ import annotations

import contextlib
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscope.agent.sources.slurm import cluster_text, job_text, scheduler_text
from gpuscope.agent.sources.slurm.gres import (
    expand_hostlist,
    gres_of_tres,
    parse_gres,
    parse_tres,
    uncounted_shares,
)
from gpuscope.agent.sources.slurm.job_text import parse_placements
from gpuscope.agent.sources.slurm.metrics_pages import parse_page
from gpuscope.agent.sources.slurm.restd_json import to_reservation
from gpuscope.agent.sources.slurm.values import (
    REST_API,
    count_array_tasks,
    format_argument,
    parse_duration_text,
    parse_mebibytes,
    parse_node_state,
    parse_number,
    parse_time,
    parse_version,
    refused_field,
)
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import FairShare, Gres, JobPlacement, SlurmJob, SlurmNode
from tests.fake_slurm import VERSIONS, recorded, recorded_bytes
from tests.fakes import present

names = st.text(string.ascii_lowercase + "-", min_size=1, max_size=6)
models = st.sampled_from(["a100", "h100", "a100_3g.20gb", "1g.10gb", "tesla-t4"])
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("", ()),
        ("gpu1", ("gpu1",)),
        ("gpu[1-3,7],cpu1", ("gpu1", "gpu2", "gpu3", "gpu7", "cpu1")),
        ("n[008-011]", ("n008", "n009", "n010", "n011")),
        ("r[1-2]c[1-2]-x", ("r1c1-x", "r1c2-x", "r2c1-x", "r2c2-x")),
        ("a100[0-1]", ("a1000", "a1001")),
    ],
)
def test_hostlists(text: str, expanded: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == expanded


@pytest.mark.parametrize(
    "text", ["a[", "a]", "a[1", "a[[1]]", "a[]", "a[x]", "a[3-1]", "a[1-9999999999]", "[1]" * 50]
)
def test_hostlists_that_are_none_or_too_long(text: str) -> None:
    with pytest.raises(ValueError, match="hostlist"):
        expand_hostlist(text)


@given(names, st.integers(0, 5000), st.integers(0, 60), st.integers(1, 6))
def test_a_range_stands_for_its_names(prefix: str, first: int, more: int, width: int) -> None:
    text = f"{prefix}[{first:0{width}d}-{first + more:0{width}d}]"
    assert expand_hostlist(text) == tuple(f"{prefix}{n:0{width}d}" for n in range(first, first + more + 1))


@given(st.text("ab[]-,0123456789", max_size=30))
def test_any_hostlist_is_expanded_within_its_limit_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(expand_hostlist(text, 100)) <= 100


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("(null)", ()),
        ("gpu:4", (Gres("gpu", "", 4),)),
        ("gpu:a100:4(S:0-1)", (Gres("gpu", "a100", 4),)),
        ("gpu:a100:3(IDX:0,2-3)", (Gres("gpu", "a100", 3, (0, 2, 3)),)),
        (
            "gpu:h100:0(IDX:),gpu:a100_3g.20gb:1(IDX:3)",
            (Gres("gpu", "h100", 0, ()), Gres("gpu", "a100_3g.20gb", 1, (3,))),
        ),
        ("shard:a100_3g.20gb:0(IDX:N/A)", (Gres("shard", "a100_3g.20gb", 0),)),
        ("shard:1(0/2,1/2,0/2,0/2)", (Gres("shard", "", 1, (1,)),)),
        ("shard:h100:1(-/2,1/2)", (Gres("shard", "h100", 1, (1,)),)),
        ("gres/gpu:2", (Gres("gpu", "", 2),)),
        ("gres:gpu:a100:2", (Gres("gpu", "a100", 2),)),
        ("gpu:a100", (Gres("gpu", "a100", 1),)),
        ("gpu", (Gres("gpu", "", 1),)),
        ("mps:2K,craynetwork:4,gpu:1", (Gres("mps", "", 2048), Gres("gpu", "", 1))),
        ("gpu:a100:many,gpu:2", (Gres("gpu", "", 2),)),
        ("gpu:a100:1(IDX:9-2)", (Gres("gpu", "a100", 1),)),
        ("gpu:a100:1(IDX:0-99999999)", (Gres("gpu", "a100", 1),)),
        ("shard(CNT:2)", (Gres("shard", "", 2),)),  # without device files; 20.11
        ("gpu:a100(CNT:12)", (Gres("gpu", "a100", 12),)),
        ("gpu(CNT:many)", ()),
    ],
)
def test_gres(text: str, parsed: tuple[Gres, ...]) -> None:
    assert parse_gres(text) == parsed


@given(st.lists(st.tuples(st.sampled_from(["gpu", "shard"]), models, st.sets(st.integers(0, 15))), max_size=4))
def test_gres_read_back(parts: list[tuple[str, str, set[int]]]) -> None:
    wanted = tuple(Gres(kind, model, len(found), tuple(sorted(found))) for kind, model, found in parts)
    text = ",".join(
        f"{one.kind}:{one.model}:{one.count}(IDX:{','.join(map(str, present(one.indices)))})" for one in wanted
    )
    assert parse_gres(text) == wanted


@given(any_text)
def test_any_text_is_gres_or_nothing(text: str) -> None:
    for gres in (*parse_gres(text), *gres_of_tres(text), *parse_gres("gpu:" + text)):
        assert gres.count >= 0


@pytest.mark.parametrize(
    ("text", "uncounted"),
    [
        # 22.05, with 80 MPS shares of one GPU and two shards of another in use
        ("gpu:a100:0(IDX:N/A),shard:0,mps:a100:1(IDX:0)", {("mps", "a100")}),
        ("gpu:h100:1(IDX:1),shard:h100:1(IDX:0),shard:a100:0(IDX:N/A)", {("shard", "h100")}),
        ("gpu:h100:1(IDX:1),shard:h100:2(-/2,2/2)", set()),  # 24.11
        ("gpu:a100:3(IDX:0-2)", set()),
        ("", set()),
    ],
)
def test_shares_that_slurm_does_not_count(text: str, uncounted: set[tuple[str, str]]) -> None:
    assert uncounted_shares(text) == uncounted


def test_tres() -> None:
    text = "cpu=4,mem=62.50G,node=1,billing=4,gres/gpu=3,gres/gpu:a100=2,gres/shard=4"
    assert parse_tres(text)["mem"] == "62.50G"
    assert set(gres_of_tres(text)) == {Gres("gpu", "a100", 2), Gres("gpu", "", 1), Gres("shard", "", 4)}
    assert gres_of_tres("cpu=1,mem=1G") == ()


@given(st.dictionaries(models, st.integers(1, 64), max_size=4), st.integers(0, 9))
def test_tres_counts_each_gpu_once(typed: dict[str, int], untyped: int) -> None:
    total = sum(typed.values()) + untyped
    text = ",".join(["cpu=1", f"gres/gpu={total}", *(f"gres/gpu:{m}={n}" for m, n in typed.items())])
    assert sum(gres.count for gres in gres_of_tres(text)) == total


@pytest.mark.parametrize(
    ("text", "count"),
    [("2-5%2", 4), ("0-99:2,150-200%3", 101), ("7", 1), ("1,3,5", 3), ("1,3,...", 2), ("N/A", 1), ("", 1)],
)
def test_array_tasks(text: str, count: int) -> None:
    assert count_array_tasks(text) == count


@given(st.sets(st.integers(0, 2000), min_size=1))
def test_each_task_of_an_array_counts(tasks: set[int]) -> None:
    assert count_array_tasks(",".join(map(str, sorted(tasks))) + "%5") == len(tasks)


def test_an_array_without_end_is_bounded() -> None:
    assert count_array_tasks("0-999999999," * 50) == 4_000_001


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784.0), ("02:03", 123.0), ("1:00:00", 3600.0), ("2-12", 216000.0), ("90", 5400.0),
     ("UNLIMITED", ABSENT), ("INVALID", ABSENT), ("", ABSENT)],
)  # fmt: skip
def test_durations(text: str, seconds: object) -> None:
    assert parse_duration_text(text) == seconds


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_durations_read_back(days: int, hours: int, minutes: int, seconds: int) -> None:
    text = f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    assert parse_duration_text(text) == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@given(any_text)
@example("+")
def test_no_value_fails_on_any_text(text: str) -> None:
    for parse in (parse_time, parse_duration_text, parse_mebibytes, parse_number, count_array_tasks):
        parse(text)
    parse_node_state(text, text)


def test_times_and_sizes() -> None:
    assert parse_time("1794841395") == 1794841395.0
    assert parse_time("2026-11-15T18:25:37+00:00") == 1794767137.0
    for text in ("Unknown", "N/A", "NONE", "0", "soon"):
        assert parse_time(text) is ABSENT
    assert parse_mebibytes("64000") == 64000 << 20
    assert parse_mebibytes("62.50G") == 64000 << 20
    assert parse_mebibytes("N/A") is ABSENT


@pytest.mark.parametrize(
    ("long", "complete", "base", "flags"),
    [
        ("draining", "mixed+drain", "mixed", {"drain"}),
        ("down*", "down+not_responding", "down", {"not_responding"}),
        ("down*", "", "down", {"not_responding"}),
        ("drained", "", "idle", {"drain"}),
        ("mixed-", "", "mixed", {"planned"}),
        ("idle~", "", "idle", {"powered_down"}),
        ("melted", "", "melted", set()),
        ("maint", "idle+maintenance+reserved", "idle", {"maint", "reserved"}),
    ],
)
def test_node_states(long: str, complete: str, base: str, flags: set[str]) -> None:
    assert parse_node_state(long, complete) == (base, flags)


odd_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), min_size=1, max_size=20
)
RIGHT_TO_LEFT = "\u202e\u05e9\u05dc\u05d5\u05dd \"x\" 'y' \\ | \u2028State=z"


@given(odd_names.filter(lambda name: name == name.strip()))
@example(RIGHT_TO_LEFT.strip())
def test_an_account_may_have_any_name(name: str) -> None:
    text = f"root||1|0.5|0|1.0|1.0|1.0\n {name}||3|0.5|7|1.0|0.25|1.0\n  {name}|games|1|0.5|7|1.0|0.5|inf\n"
    found = [
        (share.account, share.parent, share.user, share.fair_share)
        for share in scheduler_text.parse_sshare(text)
    ]
    assert found == [("root", "", "", 1.0), (name, "root", "", 0.25), (name, "", "games", 0.5)]


@given(odd_names.filter(lambda name: " StartTime=" not in name), odd_names)
@example(RIGHT_TO_LEFT, " State=INACTIVE Users=root Nodes=gpu9")
@example("two words Nodes=gpu9", "x")
def test_a_reservation_may_have_any_name_and_comment(name: str, comment: str) -> None:
    text = (
        f"ReservationName={name} StartTime=10 EndTime=20 Duration=00:00:10 Nodes=gpu[1-2] NodeCnt=2 CoreCnt=8 "
        f"Users=games State=ACTIVE Comment={comment}\nReservationName=next StartTime=30 EndTime=40 Nodes=gpu1\n"
    )
    first, second = cluster_text.parse_reservations(text, {})
    assert (first.name, first.starts_at, first.ends_at, first.users) == (name, 10.0, 20.0, "games")
    assert (first.node_list, first.state) == ("gpu[1-2]", "ACTIVE")
    assert (second.name, second.node_list) == ("next", "gpu1")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["squeue", "sinfo"])
def test_truncated_output_is_not_used(version: str, name: str) -> None:
    output = recorded_bytes(version, name)
    parse = job_text.parse_squeue if name == "squeue" else cluster_text.parse_sinfo
    for cut in range(1, len(output) - 1, 97):
        if output[:cut].endswith(b"|\n"):
            continue
        with pytest.raises(SourceError, match=r"cut off|unknown format"):
            parse(output[:cut])


@pytest.mark.parametrize("line", ["7|7|\n", f"not|a|job{'|' * 20}\n", "welcome\n"])
def test_output_with_a_line_of_another_format_is_not_used(line: str) -> None:
    """The columns behind it may be those of another record."""
    with pytest.raises(SourceError, match=r"unknown format|without a number"):
        job_text.parse_squeue(recorded_bytes("22.05", "squeue") + line.rjust(500).encode())


def test_a_character_that_slurm_cut_in_two_is_left_out() -> None:
    """Slurm counts bytes."""
    name, width = "\u05e9\u05dc\u05d5\u05dd" * 50, job_text.WIDTHS["Name"]
    cells = {"State": "PENDING", "Partition": "cpu"}
    fields = "".join(cells.get(field, "1") + "|" for field in job_text.FIELDS)
    texts = b" " * (sum(job_text.WIDTHS.values()) - width) + b"x" + name.encode()[: width - 1]
    (job,) = job_text.parse_squeue(texts + fields.encode() + b"\n")
    assert job.name == "x" + name[: (width - 1) // 2]


@given(any_text)
def test_no_parser_fails_on_any_text_but_by_saying_so(text: str) -> None:
    for width in (0, 300):
        with contextlib.suppress(SourceError):
            job_text.parse_squeue(text.rjust(width).encode() + b"\n")
        with contextlib.suppress(SourceError):
            cluster_text.parse_sinfo(text.rjust(width).encode() + b"\n")
    with contextlib.suppress(SourceError):
        scheduler_text.parse_sdiag(text)
    with contextlib.suppress(SourceError):
        parse_page(text)
    scheduler_text.parse_sshare(text)
    parse_placements(f"JobId=1 JobName={text}\n   JOB_GRES={text}\n     Nodes={text}\n", {1: running(1)})
    cluster_text.parse_reservations(f"ReservationName={text}", {})
    cluster_text.parse_licenses(f"LicenseName={text} Total=1 Used={text}")
    cluster_text.controllers(text)


def running(number: int, nodes: int = 2) -> SlurmJob:
    return SlurmJob(number, "ann", "ml", ("gpu",), "RUNNING", "None", "x", 1, nodes, (), "gpu[1-2]")


def placed(text: str, *numbers: int) -> dict[int, tuple[JobPlacement, ...]]:
    found, imitated = parse_placements(text, {number: running(number) for number in numbers})
    assert not imitated
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
def test_placements_are_those_of_the_recording(version: str) -> None:
    found = placed(recorded(version, "show_job"), 3, 6)
    assert [(p.node, p.gres) for p in found[3]] == [
        ("gpu1", (Gres("gpu", "a100", 1, (2,)),)),
        ("gpu2", (Gres("gpu", "a100", 1, (3,)),)),
    ]
    assert found[6][0].gres == (Gres("shard", "", 1, (1,)),)


def test_identical_nodes_are_one_line_of_a_hostlist() -> None:
    text = (
        "JobId=5 JobName=x\n   UserId=a(1)\n   JOB_GRES=gpu:2\n"
        "     Nodes=gpu[1-2] CPU_IDs=0-1 Mem=1 GRES=gpu:1(IDX:0)\n   MinCPUsNode=1\n\n"
    )
    assert [p.node for p in placed(text, 5)[5]] == ["gpu1", "gpu2"]
    assert parse_placements(text, {5: running(5, nodes=1)}) == ({}, frozenset()), "more nodes than it has"


def test_a_job_whose_gpus_slurm_does_not_know_has_no_placement() -> None:
    """As 22.05 printed it: the job got a GPU after a restart of slurmctld, before its node had registered."""
    text = (
        "JobId=25 JobName=x\n   JOB_GRES=gpu:a100:0\n"
        "     Nodes=gpu1 CPU_IDs=0 Mem=1024 GRES=gpu:a100:0(IDX:)\n   MinCPUsNode=1\n\n"
        "JobId=26 JobName=y\n   JOB_GRES=gpu:h100:0,gpu:a100:1\n"
        "     Nodes=gpu1 CPU_IDs=1 Mem=1024 GRES=gpu:h100:0(IDX:),gpu:a100:1(IDX:1)\n   MinCPUsNode=1\n\n"
        "JobId=27 JobName=z\n   JOB_GRES=(null)\n     Nodes=cpu1 CPU_IDs=1 Mem=1024 GRES=\n"
    )
    assert placed(text, 25, 26, 27) == {
        26: (JobPlacement("gpu1", (Gres("gpu", "a100", 1, (1,)),)),),
        27: (JobPlacement("cpu1", ()),),
    }


def test_a_draining_node_with_free_cpus_is_mixed() -> None:
    """scontrol says so; sinfo 22.05 says `allocated+drain`."""
    nodes = cluster_text.parse_sinfo(recorded_bytes("22.05", "sinfo"))
    (node,) = (node for node in nodes if node.name == "gpu3")
    assert (node.cpus_allocated, node.cpus, node.base_state, node.flags) == (4, 16, "mixed", {"drain"})


def test_sshare_keeps_the_tree() -> None:
    shares = scheduler_text.parse_sshare(recorded("22.05", "sshare"))
    assert [(s.account, s.parent, s.user) for s in shares] == [
        ("root", "", ""), ("root", "", "root"), ("ml", "root", ""), ("ml", "", "alice"),
        ("physics", "root", ""), ("physics", "", "bob"),
    ]  # fmt: skip
    assert shares[3] == FairShare(
        account="ml", user="alice", raw_shares=1, norm_shares=1, raw_usage=8679, effective_usage=1,
        fair_share=0.333333, level_fs=1,
    )  # fmt: skip
    assert shares[2].fair_share is ABSENT


def test_sdiag_keeps_the_two_schedulers_apart() -> None:
    stats = scheduler_text.parse_sdiag(recorded("22.05", "sdiag"))
    assert stats.main["Last cycle"] != stats.backfill["Last cycle"]
    young = scheduler_text.parse_sdiag(recorded("26.05", "sdiag"))
    assert "Mean cycle" not in young.backfill  # not printed before the first cycle: not 0
    assert any(rpc.name == "REQUEST_PING" for rpc in stats.rpcs_by_type)
    assert (stats.answered_at, stats.statistics_since) == (1794842127, 1794841310)
    assert stats.jobs_counted_at == 1794842122
    with pytest.raises(SourceError, match="cut off"):
        scheduler_text.parse_sdiag(recorded("22.05", "sdiag")[:200])


def test_ping() -> None:
    assert cluster_text.controllers("Slurmctld(primary) at master is UP\n") == {"primary at master": True}
    two = "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n"
    assert list(cluster_text.controllers(two).values()) == [False, True]


def test_versions_and_refused_fields() -> None:
    assert parse_version("slurm-wlm 22.05.8") == "22.05.8"
    assert refused_field("squeue: error: Invalid job format specification: LicensesAlloc\n") == "LicensesAlloc"
    assert refused_field("slurm_load_jobs error: Unable to contact slurm controller") == ""
    assert [version for version, _ in REST_API] == sorted((v for v, _ in REST_API), reverse=True)


def test_free_text_has_a_width_and_comes_first() -> None:
    assert format_argument({"Name": 64}, ("JobID", "State")) == "Name:.64,JobID:|,State:|"


NODES = {
    "gpu1": SlurmNode(name="gpu1", long_state="idle", cpus=16, gres=parse_gres("gpu:a100:4")),
    "gpu2": SlurmNode(name="gpu2", long_state="idle", cpus=16, gres=parse_gres("gpu:a100:4,shard:8")),
}


@pytest.mark.parametrize(
    ("reservation", "gpus"),
    [
        ("Nodes=gpu1 NodeCnt=1 CoreCnt=16 Flags=SPEC_NODES TRES=cpu=16", 4),
        ("Nodes=gpu[1-2] NodeCnt=2 CoreCnt=32 Flags=MAINT TRES=cpu=32", 8),
        ("Nodes=gpu2 NodeCnt=1 CoreCnt=2 Flags=SPEC_NODES   NodeName=gpu2 CoreIDs=2-3 TRES=cpu=2", 0),
        ("Nodes=gpu2 NodeCnt=1 CoreCnt=2 Flags= TRES=cpu=2", ABSENT),  # 22.05 does not name the cores
        ("Nodes=gpu2 NodeCnt=1 CoreCnt=2 NodeName=gpu2 CoreIDs=2-3 TRES=cpu=2,gres/gpu=1", 1),
        ("Nodes=gpu9 NodeCnt=1 CoreCnt=16 TRES=cpu=16", ABSENT),
        ("Nodes= NodeCnt=0 CoreCnt=0 Licenses=matlab:2 TRES=(null)", 0),
    ],
)
def test_gpus_of_a_reservation(reservation: str, gpus: object) -> None:
    """As 22.05 and 24.11 print them: GPUs are not in the TRES of whole nodes."""
    text = f"ReservationName=r StartTime=10 EndTime=20 Duration=00:00:10 {reservation} State=ACTIVE\n"
    (found,) = cluster_text.parse_reservations(text, NODES)
    assert found.gpus == gpus


def test_gpus_of_a_reservation_in_json() -> None:
    row = {"name": "r", "node_list": "gpu2", "tres": "cpu=2", "core_specializations": [{"node": "gpu2"}]}
    assert to_reservation(row, NODES, 0.0).gpus == 0
    assert to_reservation({**row, "tres": "cpu=16", "core_specializations": []}, NODES, 0.0).gpus == 4
