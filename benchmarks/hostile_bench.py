"""Runs every attack of the catalogue (`tests/hostile`); measures memory, `/-/healthy`, another client, scrapes.

Targets: growth ≤ 512 MiB, `/-/healthy` p99 ≤ 250 ms, another client served within 2 s, scrapes each second.
An argument selects attacks by a part of their name: `python -m benchmarks.hostile_bench "slow heads"`.
"""

from __future__ import annotations

import sys

from benchmarks.measure import MIB, table
from tests.hostile.catalogue import Attack, carry_out, catalogue

HEAD = (
    "attack", "memory", "healthy p50", "p99", "failed", "other client p50", "longest", "scrape gap",
    "log lines",
)  # fmt: skip


def _row(attack: Attack) -> list[str]:
    try:
        outcome = carry_out(attack)
    except AssertionError as error:
        return [attack.name, f"FAILED: {(str(error) or attack.holds).splitlines()[0][:80]}", *[""] * 7]
    return [
        attack.name,
        f"+{outcome.growth_bytes / MIB:.0f} MiB",
        f"{outcome.healthy_p50 * 1e3:.1f} ms",
        f"{outcome.healthy_p99 * 1e3:.0f} ms",
        str(outcome.healthy_failures),
        f"{outcome.other_p50 * 1e3:.1f} ms",
        f"{outcome.other_longest:.2f} s",
        f"{outcome.scrape_gap_longest:.2f} s",
        str(outcome.log_lines),
    ]


def main() -> None:
    words = sys.argv[1:]
    rows = []
    for attack in catalogue():
        if not words or any(word in attack.name for word in words):
            rows.append(_row(attack))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
