"""Expressions of GPU checks that compare several series, where the unit tests of the rules have no room."""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope.health.checks import CHECKS
from gpuscope.promql import Engine, Vector
from gpuscope.rules.memory_storage import MemoryStorage

NOW = 200_000
MINUTE = 60


def fired(kind: str, series: Mapping[tuple[tuple[str, str], ...], Mapping[int, float]]) -> set[tuple[str, str]]:
    """UUID and XID of what the check finds; `series` has the values from each given second on."""
    storage = MemoryStorage()
    storage.show_until(2**62)
    for labels, values in series.items():
        for at in range(min(values), NOW + 1, MINUTE):
            value = values[max(begin for begin in values if begin <= at)]
            storage.add(tuple(sorted((("instance", "n1"), *labels))), at * 1000, value)
    found = Engine(storage).instant(CHECKS[kind].promql, NOW * 1000)
    assert isinstance(found, Vector)
    return {(dict(labels)["uuid"], dict(labels).get("xid", "")) for labels in found.labels}


def xids(uuid: str, xid: str, *times: int) -> dict[tuple[tuple[str, str], ...], dict[int, float]]:
    """The counter and the time of the last one, which exist from the first XID on."""
    labels = (("uuid", uuid), ("gpu", uuid), ("xid", xid))
    return {
        (("__name__", "gpuscope_gpu_xid_errors_total"), *labels): {
            at: float(count) for count, at in enumerate(times, 1)
        },
        (("__name__", "gpuscope_gpu_xid_last_timestamp_seconds"), *labels): {at: float(at) for at in times},
    }


def test_two_xids_of_one_gpu_repeat_and_two_gpus_with_them_are_software() -> None:
    hour = 3600
    first, second = NOW - 5 * hour, NOW - 2 * hour
    assert fired("xid_repeats", xids("a", "31", first)) == set()
    assert fired("xid_repeats", xids("a", "31", first, second)) == {("a", "31")}
    assert fired("xid_repeats", xids("a", "31", NOW - 30 * hour, second)) == set(), "one of them was yesterday"
    both = {**xids("a", "31", first, second), **xids("a", "13", first, second)}
    assert fired("xid_repeats", both) == {("a", "31"), ("a", "13")}, "the same GPU has both"
    others = {**xids("a", "31", first, second), **xids("b", "13", first, second)}
    assert fired("xid_repeats", others) == set()


def working(uuid: str, model: str, hertz: float) -> dict[tuple[tuple[str, str], ...], dict[int, float]]:
    labels, start = (("uuid", uuid), ("gpu", uuid)), NOW - 15 * MINUTE
    return {
        (("__name__", "gpuscope_gpu_info"), *labels, ("model", model)): {start: 1.0},
        (("__name__", "gpuscope_gpu_clock_hertz"), *labels, ("clock", "sm")): {start: hertz},
        (("__name__", "gpuscope_gpu_utilization_ratio"), *labels): {start: 0.9},
    }


def test_only_gpus_of_one_model_are_compared() -> None:
    h100s = {**working("a", "H100", 1.9e9), **working("b", "H100", 1.9e9), **working("c", "H100", 1.9e9)}
    assert fired("slow_sibling", h100s) == set()
    assert fired("slow_sibling", {**h100s, **working("c", "H100", 1.2e9)}) == {("c", "")}
    others = {**working("d", "L4", 1.1e9), **working("e", "L4", 1.1e9)}
    assert fired("slow_sibling", {**h100s, **others}) == set(), "an L4 is no slow H100"
    assert fired("slow_sibling", {**h100s, **others, **working("f", "L4", 0.5e9)}) == {("f", "")}
