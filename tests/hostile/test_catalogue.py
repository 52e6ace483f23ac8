"""Runs every attack of the catalogue on a real process."""

from __future__ import annotations

import pytest

from tests.hostile.catalogue import MAX_GROWTH_BYTES, MAX_LOG_LINES, Attack, carry_out, catalogue


def _parameter(attack: Attack) -> object:
    marks = [pytest.mark.slow] if attack.slow else []
    return pytest.param(attack, id=attack.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("attack", [_parameter(one) for one in catalogue()])
def test_what_must_hold(attack: Attack) -> None:
    outcome = carry_out(attack)
    assert outcome.growth_bytes <= MAX_GROWTH_BYTES
    assert outcome.log_lines <= MAX_LOG_LINES


def test_names_are_unique() -> None:
    names = [attack.name for attack in catalogue()]
    assert len(names) == len(set(names))
