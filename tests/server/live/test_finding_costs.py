"""The cost of the findings of now, and their order."""

from __future__ import annotations

from typing import Any

from gpuscope.serve.live.live_fleet import with_costs

HOUR = 3600.0


def finding(kind: str, cost: float | None = None, gpus: float | None = None) -> Any:
    at = None if cost is None else HOUR
    return {"id": kind, "kind": kind, "cost_gpu_hours": cost, "wasted_gpus": gpus, "cost_at": at}


def test_the_cost_grows_since_it_was_counted_and_the_most_expensive_is_first() -> None:
    found = with_costs(
        [finding("hung"), finding("held_idle", 1.0, 0.5), finding("only_some_work", 1.0, 2.0)], 2 * HOUR
    )
    assert [(one["kind"], one["cost_gpu_hours"], one["cost_at"]) for one in found] == [
        ("only_some_work", 3.0, 2 * HOUR), ("held_idle", 1.5, 2 * HOUR), ("hung", None, None),
    ]  # fmt: skip


def test_a_clock_behind_does_not_take_back_what_was_counted() -> None:
    assert with_costs([finding("hung", 1.0, 1.0)], 0.0)[0]["cost_gpu_hours"] == 1.0
