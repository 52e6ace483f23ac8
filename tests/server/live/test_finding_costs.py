"""The cost of the findings of now, and their order."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.server.live.finding_costs import with_costs

HOUR = 3600.0


def finding(kind: str, *uuids: str, since: float | None = 0.0) -> Any:
    return {"id": kind, "kind": kind, "uuids": list(uuids), "since": since, "cost_gpu_hours": None}


def test_gpus_times_hours_and_most_expensive_first() -> None:
    found = with_costs(
        [
            finding("throttled", "GPU-1"),
            finding("held_idle", "GPU-2", since=HOUR),
            finding("only_some_work", "GPU-3", "GPU-4"),
        ],
        2 * HOUR,
    )
    assert [(one["kind"], one["cost_gpu_hours"]) for one in found] == [
        ("only_some_work", 4.0), ("held_idle", 1.0), ("throttled", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "unknown",
    [finding("held_idle", "GPU-1", since=None), finding("held_idle", "MIG-1"), finding("held_idle")],
)
def test_what_is_not_known_has_no_cost(unknown: Any) -> None:
    assert with_costs([unknown], HOUR)[0]["cost_gpu_hours"] is None


def test_a_clock_behind_the_beginning_costs_nothing() -> None:
    assert with_costs([finding("hung", "GPU-1", since=HOUR)], 0.0)[0]["cost_gpu_hours"] == 0.0
