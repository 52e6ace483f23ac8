"""The snapshot table: GPUs and instances, their processes, and unused allocations."""

from __future__ import annotations

from dataclasses import replace

from gpuscope.cli.snapshot import to_json
from gpuscope.cli.snapshot_table import render
from gpuscope.readings import ABSENT, IDLE, Allocation, Owner, Ownership, Process, Snapshot
from tests.metrics.sessions_scene import TAKEN_AT, first_node, second_node


def table(snapshot: Snapshot) -> list[str]:
    return list(render(snapshot, colour=False))


def line_with(lines: list[str], text: str) -> str:
    (line,) = [line for line in lines if text in line]
    return line


def test_instances_have_own_rows_and_free_ones_are_marked() -> None:
    lines = table(first_node())
    assert "ml/mig-0" in line_with(lines, "0_7_0")
    assert line_with(lines, "0_12_0").endswith("free")
    assert line_with(lines, "ml/infer-1").startswith(" "), "a second process stands below its GPU"
    assert line_with(lines, "tritonserver").split()[-3:] == ["%", "active", "1m"]


def test_unused_allocations_are_shown() -> None:
    unused = Allocation(gpu_uuid=first_node().devices[2].uuid, namespace="ml", pod="lazy", device_id="x")
    shot = replace(first_node(), ownership=Ownership(allocations=(unused,)))
    assert line_with(table(shot), "ml/lazy").endswith("allocated, unused")


def test_hostile_names_cannot_move_the_cursor() -> None:
    text = "\n".join(table(second_node()))
    assert 'evil"name\\?' in text


def test_how_long_a_process_has_been_idle() -> None:
    node = second_node()
    assert node.processes is not ABSENT
    idle = tuple(replace(p, idle_since=TAKEN_AT - 300) if p.state == IDLE else p for p in node.processes)
    assert "idle 5m" in line_with(table(replace(node, processes=idle)), "hub/notebook-x")


def where(owner: Owner) -> str:
    node = second_node()
    assert node.processes is not ABSENT
    process: Process = replace(node.processes[0], owner=owner)
    return line_with(table(replace(node, processes=(process,))), "555")


def test_owner_text_prefers_the_most_specific_name() -> None:
    assert "job 17" in where(Owner(job="17"))
    assert "pod 0-1-2" in where(Owner(pod_uid="0-1-2", container_id="f" * 64))
    assert "container web" in where(Owner(container="web", container_id="f" * 64))
    assert "container ffffffffffff " in where(Owner(container_id="f" * 64))


def test_json_has_owners_and_omits_absent_values() -> None:
    told = to_json(first_node())
    first = told["processes"][0]
    assert first["owner"]["pod"] == "mig-0"
    assert "sm_ratio" not in first
    assert "allocations" not in told["ownership"]
