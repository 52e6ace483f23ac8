"""Expressions that compare several series over time, where the unit tests of the rules have no room."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpuscope.history.promql import Engine, Vector
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.rules.unit_tests import MemoryStorage
from gpuscope.model.series import STALE_NAN_BITS

NOW = 201_600  # a multiple of the steps of subqueries
MINUTE = 60
HOUR = 3600
DAY = 86400

STALE = float(np.array([STALE_NAN_BITS], dtype=np.int64).view(np.float64)[0])

Pairs = tuple[tuple[str, str], ...]
SeriesValues = Mapping[Pairs, Callable[[int], float | None]]
"""The value of a series at each second; None while it has none."""


def series(metric: str, value: Callable[[int], float | None], **labels: str) -> SeriesValues:
    named = {"__name__": metric, "instance": "n1", "job": "gpus", **labels}
    return {tuple(sorted(named.items())): value}


def during(begin: int, end: int, value: float = 1.0) -> Callable[[int], float | None]:
    return lambda at: value if begin <= at <= end else None


def fired(kind: str, *every: SeriesValues, at: int = NOW, label: str = "uuid") -> set[str]:
    """What the check finds, by a label."""
    storage = MemoryStorage()
    storage.show_until(2**62)
    for one in every:
        for labels, value in one.items():
            before: float | None = None
            for second in range(at - DAY - HOUR, at + 1, MINUTE):
                number = value(second)
                if number is not None or before is not None:  # a scrape marks the series that have ended
                    storage.add(labels, second * 1000, STALE if number is None else number)
                before = number
    found = Engine(storage).instant(CHECKS[kind].promql, at * 1000)
    assert isinstance(found, Vector)
    return {dict(labels).get(label, "") for labels in found.labels}


def failed_programs(*programs: tuple[str, int]) -> list[SeriesValues]:
    """Programs of users that each ended with an XID of GPU a."""
    gpu = {"uuid": "a", "gpu": "0"}

    def xid_age(second: int) -> float | None:
        return min((float(second - at) for _, at in programs if at <= second), default=None)

    return [
        series("gpuscope_gpu_xid_age_seconds", xid_age, **gpu, xid="31"),
        *(
            series("gpuscope_process_age_seconds", during(at - HOUR, at, 600.0), **gpu, pid=str(at), user=user)
            for user, at in programs
        ),
    ]


def test_failures_of_several_users_make_a_gpu_suspect_and_those_of_one_user_do_not() -> None:
    """One user's own mistake, three times, is no reason for a field diagnostic."""
    first, second, third = (NOW - hours * HOUR + 2 * MINUTE for hours in (5, 3, 2))
    own = failed_programs(("ann", first), ("ann", second), ("ann", third))
    assert fired("failed_jobs", *own) == set()
    several = failed_programs(("ann", first), ("bob", second), ("ann", third))
    assert fired("failed_jobs", *several) == {"a"}
    assert fired("failed_jobs", *failed_programs(("ann", first), ("bob", second))) == set(), "perhaps by chance"


def test_programs_that_end_without_an_xid_have_not_failed() -> None:
    ended = [
        series("gpuscope_process_age_seconds", during(NOW - 6 * HOUR, NOW - n * HOUR, 600.0),
               uuid="a", gpu="a", pid=str(n), user=user)
        for n, user in ((2, "ann"), (3, "bob"), (4, "cid"))
    ]  # fmt: skip
    assert fired("failed_jobs", *ended) == set()


def working(uuid: str, model: str, hertz: float, busy: float = 0.97) -> list[SeriesValues]:
    gpu, begin = {"uuid": uuid, "gpu": uuid}, NOW - 15 * MINUTE
    return [
        series("gpuscope_gpu_info", during(begin, NOW), **gpu, model=model),
        series("gpuscope_gpu_clock_hertz", during(begin, NOW, hertz), **gpu, clock="sm"),
        series("gpuscope_gpu_utilization_ratio", during(begin, NOW, busy), **gpu),
    ]


def test_a_gpu_is_compared_with_those_of_its_model_that_are_as_busy() -> None:
    h100s = [one for uuid in "ab" for one in working(uuid, "H100", 1.74e9)]
    assert fired("slow_sibling", *h100s, *working("c", "H100", 1.74e9)) == set()
    slow = working("c", "H100", 1.035e9)
    assert fired("slow_sibling", *h100s, *slow) == {"c"}
    idle = working("d", "H100", 0.3e9, busy=0.0)
    assert fired("slow_sibling", *h100s, *slow, *idle) == {"c"}, "an idle one neither hides it nor is slow"
    l4s = [one for uuid in "ef" for one in working(uuid, "L4", 0.9e9)]
    assert fired("slow_sibling", *h100s, *working("c", "H100", 1.74e9), *l4s) == set(), "an L4 is no slow H100"


def memory(used: Callable[[int], float | None]) -> list[SeriesValues]:
    return [
        series("gpuscope_process_memory_bytes", used, uuid="a", gpu="0", pid="7", user="ann"),
        series("gpuscope_gpu_memory_total_bytes", during(0, NOW, 80e9), uuid="a", gpu="0"),
    ]


def test_a_leak_grows_all_the_time() -> None:
    def leak(at: int) -> float:
        return 40e9 + (at - (NOW - HOUR)) * 12e6  # out of memory in less than an hour

    def second_model(at: int) -> float:
        return 30e9 if at < NOW - 20 * MINUTE else 60e9

    def warm_up(at: int) -> float | None:
        return None if at < NOW - 20 * MINUTE else 1e9 + (at - (NOW - 20 * MINUTE)) * 4e7

    assert fired("memory_leak", *memory(leak)) == {"a"}
    assert fired("memory_leak", *memory(second_model)) == set()
    assert fired("memory_leak", *memory(warm_up)) == set(), "it has just started"


def disk(free: Callable[[int], float | None], *, read_only: float = 0.0) -> list[SeriesValues]:
    place = {"mountpoint": "/data", "device": "sda"}
    return [
        series("node_filesystem_avail_bytes", free, **place),
        series("node_filesystem_size_bytes", during(0, NOW, 1e12), **place),
        series("node_filesystem_readonly", during(0, NOW, read_only), **place),
        series("gpuscope_agent_info", during(0, NOW)),
    ]


def test_a_read_only_file_system_does_not_fill() -> None:
    full = during(0, NOW, 0.0)
    assert fired("disk_filling", *disk(full), label="mountpoint") == {"/data"}
    assert fired("disk_filling", *disk(full, read_only=1.0)) == set(), "an image is always full"
    assert fired("disk_filling", *disk(lambda at: 3e11 - (at - NOW) * 4e6), label="mountpoint") == {"/data"}
    assert fired("disk_filling", *disk(during(0, NOW, 5e11))) == set()
    assert fired("disk_filling", *disk(full)[:3]) == set(), "a machine without an agent is not ours"


def up(value: float, job: str = "gpus", instance: str = "n1") -> SeriesValues:
    return series("up", during(NOW - 10 * MINUTE, NOW, value), job=job, instance=instance)


def agent_until(end: int, instance: str = "n1") -> SeriesValues:
    return series("gpuscope_agent_info", during(NOW - 5 * HOUR, end), instance=instance)


def test_only_a_target_that_was_an_agent_is_a_node_that_is_down() -> None:
    left = NOW - 10 * MINUTE
    assert fired("node_down", up(0.0), agent_until(left), label="instance") == {"n1"}
    assert fired("node_down", up(1.0), agent_until(NOW)) == set()
    young = series("gpuscope_agent_info", during(NOW - 4 * MINUTE, NOW - 3 * MINUTE))
    assert fired("node_down", up(0.0), young, label="instance") == {"n1"}, "it answered for a minute"
    assert fired("node_down", up(0.0, job="postgres"), agent_until(NOW)) == set(), (
        "another exporter of the host"
    )
    database = up(0.0, job="postgres", instance="db1")
    assert fired("node_down", database, up(1.0), agent_until(NOW)) == set()
    assert fired("target_down", database, up(1.0), agent_until(NOW)) == set(), (
        "a job without agents is not ours"
    )
    never = up(0.0, instance="n2")
    assert fired("target_down", never, up(1.0), agent_until(NOW), label="instance") == {"n2"}


def test_a_node_that_pushes_is_down_when_it_sends_nothing() -> None:
    other = agent_until(NOW, instance="n2")
    assert fired("node_down", agent_until(NOW - 10 * MINUTE), other, label="instance") == {"n1"}
    assert fired("node_down", agent_until(NOW), other) == set()
    assert fired("node_down", agent_until(NOW - 10 * MINUTE)) == set(), "perhaps it is the server that was away"
    removed = series("gpuscope_agent_info", during(NOW - 2 * DAY, NOW - DAY - 10 * MINUTE))
    assert fired("node_down", removed, other) == set()
