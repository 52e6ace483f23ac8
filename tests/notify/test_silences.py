"""Silences by Alertmanager's rules, kept over a crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.limits import LIMITS_REACHED
from gpuscope.notify.matcher_parser import parse_matchers
from gpuscope.notify.notify_state import NotifyState
from gpuscope.notify.silences import RETENTION_SECONDS, Silence, SilenceError, SilenceNotFound, Silences

NOW = 1_800_000_000.0


def silence(matchers: str = "node=n1", start: float = 0.0, end: float = 3600.0, **more: str) -> Silence:
    return Silence(parse_matchers(matchers), NOW + start, NOW + end, "me", "why", **more)  # type: ignore[arg-type]


@pytest.fixture
def state(tmp_path: Path) -> NotifyState:
    return NotifyState(tmp_path / "s.sqlite")


@pytest.fixture
def silences(state: NotifyState) -> Silences:
    return Silences(state, max_silences=3)


def test_create_match_expire_and_forget(silences: Silences, state: NotifyState) -> None:
    silence_id = silences.set(silence(), NOW)
    assert silences.silenced_by({"node": "n1"}, NOW) == [silence_id]
    assert silences.silenced_by({"node": "n2"}, NOW) == []
    silences.expire(silence_id, NOW + 5)
    silences.expire(silence_id, NOW + 6)
    assert silences.get(silence_id).ends_at == NOW + 5
    assert silences.silenced_by({"node": "n1"}, NOW + 6) == []
    silences.forget_expired(NOW + RETENTION_SECONDS)
    assert len(silences.all()) == 1
    silences.forget_expired(NOW + 5 + RETENTION_SECONDS)
    assert silences.all() == []
    assert state.silences() == []


def test_a_silence_is_on_the_disk_before_its_id_is_told(silences: Silences, tmp_path: Path) -> None:
    made = silences.set(silence('node=~"a|b",x!="é\\n"', annotations=(("k", "v"),)), NOW)  # type: ignore[arg-type]
    [kept] = NotifyState(tmp_path / "s.sqlite").silences()
    assert kept == silences.get(made)


def test_an_update_keeps_the_id_where_it_does_not_rewrite_history(silences: Silences) -> None:
    first = silences.set(silence(), NOW)
    assert silences.set(replace(silence(end=7200.0), id=first), NOW + 10) == first
    other = silences.set(replace(silence("node=n2"), id=first), NOW + 20)
    assert other != first
    assert silences.get(first).state(NOW + 20) == "expired"
    pending = silences.set(silence(start=100.0), NOW)
    assert silences.set(replace(silence(start=200.0), id=pending), NOW + 20) == pending


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (silence(end=0.0), "start time must be before end time"),
        (silence(start=-20.0, end=-10.0), "in the past"),
        (silence(""), "at least one matcher"),
        (silence('a=""'), "must not match the empty string"),
        (silence("a=~.*"), "must not match the empty string"),
    ],
)
def test_wrong_silences(wrong: Silence, reason: str, silences: Silences) -> None:
    with pytest.raises(SilenceError, match=reason):
        silences.set(wrong, NOW)


def test_an_unknown_id_is_not_found(silences: Silences) -> None:
    with pytest.raises(SilenceNotFound):
        silences.set(silence(id="x"), NOW)
    with pytest.raises(SilenceNotFound):
        silences.expire("x", NOW)


def test_silences_are_bounded(silences: Silences) -> None:
    for _ in range(3):
        silences.set(silence(), NOW)
    before = LIMITS_REACHED.counts()["max_silences"]
    with pytest.raises(SilenceError, match="maximum number"):
        silences.set(silence(), NOW)
    assert LIMITS_REACHED.counts()["max_silences"] == before + 1
