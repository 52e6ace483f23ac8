"""The lines of `gpuscope snapshot`: whole screens as goldens, and what holds for every width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.cli.terminal.fleet_lines import render_snapshot
from gpuscope.cli.terminal.fleet_view import NotALivePicture, to_fleet_view
from gpuscope.cli.terminal.spans import Look, cell_width, is_control
from gpuscope.cli.terminal.top_model import select
from gpuscope.judge.checks.states import CountedGpu, count_gpus
from tests.examples import examples
from tests.goldens import check_golden
from tests.terminal.scene import NOW, fleet, gpu, one_node, session

ESCAPE = re.compile(r"\x1b\[\d*m")


def lines_of(picture: object, **look: object) -> list[str]:
    options: dict[str, object] = {"width": 80, "colour": False, **look}
    return render_snapshot(to_fleet_view(picture), Look(**options))  # type: ignore[arg-type]


def line_of(lines: list[str], start: str) -> str:
    (line,) = [line for line in lines if line.startswith(start)]
    return line


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_one_node_as_a_whole(width: int) -> None:
    text = "\n".join(lines_of(one_node(), width=width)) + "\n"
    check_golden(Path(f"terminal/snapshot-{width}.txt"), text.encode())


def test_a_fleet_as_a_whole() -> None:
    picture = fleet(3)
    picture["nodes"][1] |= {"stale": True, "gone": {"since": NOW - 3600, "why": "connection refused"}}
    picture["nodes"][2]["gpus_expected"] = 9.0
    check_golden(Path("terminal/snapshot-fleet-80.txt"), ("\n".join(lines_of(picture)) + "\n").encode())


def test_ascii_as_a_whole() -> None:
    text = "\n".join(lines_of(one_node(), unicode=False)) + "\n"
    assert text.isascii()
    check_golden(Path("terminal/snapshot-ascii-80.txt"), text.encode())


def test_colours_are_of_the_sixteen_and_ask_for_action() -> None:
    lines = lines_of(one_node(), colour=True)
    codes = set(re.findall(r"\x1b\[(\d*)m", "\n".join(lines)))
    assert codes <= {"0", "1", "2", "31", "32", "33", "35", "36"}
    (lost,) = [line for line in lines if "\x1b[31mX\x1b[0m" in line]
    assert "\x1b[31m4" in lost
    assert [ESCAPE.sub("", line).rstrip() for line in lines] == lines_of(one_node())


@settings(max_examples=examples(40))
@given(width=st.integers(20, 260), unicode=st.booleans())
def test_every_line_fits_every_width(width: int, unicode: bool) -> None:
    for picture in (one_node(), fleet(2)):
        for line in lines_of(picture, width=width, unicode=unicode):
            assert cell_width(line) <= width


def test_hostile_text_is_printable() -> None:
    assert all(line.isprintable() for line in lines_of(one_node(), width=200))


def test_an_absent_number_is_not_zero() -> None:
    lines = lines_of(one_node(), width=120)
    assert "%" not in line_of(lines, "X 4")
    assert " 0%" in line_of(lines, "- 6")


def test_an_allocated_gpu_names_its_holder() -> None:
    picture = one_node()
    (given,) = [row for row in picture["gpus"] if row["gpu"] == "6"]
    given |= {"state": "allocated", "in_use": True, "pods": ["ml/lazy"]}
    lines = lines_of(picture, width=120)
    assert line_of(lines, "A 6").endswith("ml/lazy")
    assert "1 allocated" in lines[0]


def test_a_job_of_somebody_else_is_named_as_theirs() -> None:
    """A process of bob on a GPU of alice's job: "bob, job 1" would say that job 1 is bob's."""
    picture = one_node()
    picture["jobs"] = [{"job": "1", "user": "alice"}, {"job": "2", "user": "bob"}]
    rows = {row["gpu"]: row for row in picture["gpus"]}
    rows["0"] |= {"jobs": ["1"], "users": ["bob"]}
    rows["1"] |= {"jobs": ["2"], "users": ["bob"]}
    picture["sessions"] = [session(11, "0", user="bob"), session(12, "1", user="bob", job="2")]
    lines = lines_of(picture, width=160)
    assert any(line.endswith("bob, alice's job 1") for line in lines)
    assert any(line.endswith("bob, job 2") for line in lines)


def test_the_title_counts_as_the_api_does() -> None:
    picture = one_node()
    view = to_fleet_view(picture)
    counts = count_gpus(
        CountedGpu(row.node, row.uuid, row.parent, row.state, row.is_in_use) for row in view.gpus
    )
    title = lines_of(picture, width=200)[0]
    assert f"{counts.gpus} GPUs, {counts.instances} MIG: " in title
    for state, count in counts.states.items():
        assert f"{count} {state}" in title
    assert counts.units == counts.gpus - 1 + counts.instances, "one GPU is split"


def test_a_slurm_job_shows_whose_it_is_and_its_time_left() -> None:
    picture = one_node()
    picture["jobs"] = [
        {"job": "17", "user": "alice", "account": "ml\x1b[31m", "partition": "gpu", "ends_at": NOW + 5400},
        {"job": "18", "user": "bob"},
    ]
    picture["gpus"][7] |= {"jobs": ["18"]}
    picture["sessions"] = [session(11, "0", job="17"), session(12, "1", job="99")]
    lines = lines_of(picture, width=140)
    head = line_of(lines, "GPU ")
    assert head.split()[:7] == ["GPU", "PID", "USER", "JOB/POD", "ACCOUNT", "PARTITION", "LEFT"]
    (mine,) = [line.split() for line in lines if "job 17" in line]
    assert mine[4:8] == ["17", "ml?[31m", "gpu", "1h30"]
    assert any(line.endswith("bob's job 18") for line in lines), "allocated, and no process is on it"


def test_sort_and_filter() -> None:
    view = to_fleet_view(one_node())
    assert [row.gpu for row in select(view, sort="temperature").gpus][:2] == ["2", "0"]
    assert select(view, sort="power").gpus[0].gpu == "0"
    assert [row.state for row in select(view, sort="state").gpus][:2] == ["lost", "sick"]
    assert select(view, sort="util").gpus[-1].working_ratio is None, "absent numbers come last"
    only = select(view, user="bjorn")
    assert [row.gpu for row in only.gpus] == ["0"]
    assert [row.pid for row in only.processes] == [4243]
    three = to_fleet_view(fleet(3))
    assert {row.node for row in select(three, nodes=["gpu-001"]).gpus} == {"gpu-001"}


@pytest.mark.parametrize("document", [None, [], {}, {"gpus": 3}, "x", {"gpus": {}}])
def test_a_document_of_something_else_is_refused(document: object) -> None:
    with pytest.raises(NotALivePicture):
        to_fleet_view(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(40))
@given(st.data())
def test_any_value_in_any_place_is_shown_or_left_out(data: st.DataObject) -> None:
    row = gpu("0")
    changed = {key: data.draw(JSON) for key in data.draw(st.sets(st.sampled_from(sorted(row))))}
    picture = {**one_node(), "gpus": [row | changed], "sessions": data.draw(JSON), "nodes": data.draw(JSON)}
    assert not any(is_control(c) for line in lines_of(picture) for c in line)
