"""A parser with a defect behind three comparisons, to test that the harness finds and reports it."""

from __future__ import annotations

SEEDS = (b"{}",)
TOKENS = (b"bug",)


def run(data: bytes) -> None:
    if len(data) > 2 and data[0] == 0x62 and data[1] == 0x75 and data[2] == 0x67:
        raise ZeroDivisionError(data)
