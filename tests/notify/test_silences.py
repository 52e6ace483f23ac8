"""Silences by Alertmanager's rules, kept over a crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.notify.alert_matchers import match_all, parse_matchers
from gpuscope.judge.notify.notify_state import NotifyState
from gpuscope.judge.notify.silences import (
    ACTIVE,
    MAX_LISTED_SILENCES,
    RETENTION_SECONDS,
    Silence,
    SilenceError,
    SilenceNotFound,
    Silences,
)

NOW = 1_800_000_000.0


def silence(matchers: str = "node=n1", start: float = 0.0, end: float = 3600.0, **more: str) -> Silence:
    return Silence(parse_matchers(matchers), NOW + start, NOW + end, "me", "why", **more)  # type: ignore[arg-type]


@pytest.fixture
def state(tmp_path: Path) -> NotifyState:
    return NotifyState(tmp_path / "s.sqlite")


@pytest.fixture
def silences(state: NotifyState) -> Silences:
    return Silences(state, limits=Limits(max_silences=3, max_silence_patterns=3, max_silence_bytes=2000))


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


def test_silences_follow_a_clock_that_is_set_back(silences: Silences) -> None:
    first = silences.set(silence(), NOW)
    second = silences.set(silence(start=4000.0, end=8000.0), NOW)
    found = []
    for seconds in (10.0, 5000.0, 20.0, 9000.0, 4500.0):
        found.append(silences.silenced_by({"node": "n1"}, NOW + seconds, "f"))
        active = [one.id for one in silences.all() if one.state(NOW + seconds) == ACTIVE]
        assert found[-1] == active
    assert found == [[first], [second], [first], [], [second]]


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


def test_matchers_that_are_not_equalities_are_bounded(silences: Silences) -> None:
    first = silences.set(silence('node=~"a|b",x!="1"'), NOW)
    before = LIMITS_REACHED.counts()["max_silence_patterns"]
    with pytest.raises(SilenceError, match="more than 3 matchers"):
        silences.set(silence('node=~"a",x!="1"'), NOW)
    assert LIMITS_REACHED.counts()["max_silence_patterns"] == before + 1
    silences.set(silence("node=n1,x=1"), NOW)
    silences.expire(first, NOW)
    silences.forget_expired(NOW + RETENTION_SECONDS)
    silences.set(silence('node=~"a",x!="1"', end=RETENTION_SECONDS + 9), NOW)


def test_the_size_of_a_silence_is_bounded(silences: Silences) -> None:
    before = LIMITS_REACHED.counts()["max_silence_bytes"]
    for wrong in (replace(silence(), comment="x" * 2000), silence(",".join(f"n{n}=1" for n in range(11)))):
        with pytest.raises(SilenceError, match="maximum size"):
            silences.set(wrong, NOW)
    assert LIMITS_REACHED.counts()["max_silence_bytes"] == before + 2


def test_many_silences_are_found_as_one_by_one(state: NotifyState) -> None:
    """The index and the cache find what comparing each silence finds, while silences begin, end and change."""
    silences = Silences(state, limits=Limits())
    random = Random(1)
    texts = ["a=1", "a=2", "b=1", "a=1,b=1", "a!=1,b=1", 'a=~"1|2"', 'a=~"1|2",b!=1', "c=3,a=1"]
    labels = [
        {name: value for name, value in (("a", a), ("b", b), ("c", c)) if value}
        for a in ("", "1", "2") for b in ("", "1") for c in ("", "3")
    ]  # fmt: skip
    now, ids = NOW, list[str]()
    for _ in range(150):
        now += random.randrange(20)
        start, length = random.choice((-5, 0, 30)), random.choice((20, 60, 300))
        one = silence(random.choice(texts), now - NOW + start, now - NOW + start + length)
        ids.append(silences.set(one, now))
        if random.random() < 0.3:
            silences.expire(random.choice(ids), now)
        for each in labels:
            expected = sorted(
                one.id for one in silences.all() if one.state(now) == ACTIVE and match_all(one.matchers, each)
            )
            assert silences.silenced_by(each, now, str(sorted(each.items()))) == expected
            assert silences.silenced_by(each, now) == expected


def test_an_alert_lists_a_bounded_number_of_silences(state: NotifyState) -> None:
    silences = Silences(state, limits=Limits())
    ids = [silences.set(silence(f"node=n1,x!={n}"), NOW) for n in range(MAX_LISTED_SILENCES + 10)]
    found = silences.silenced_by({"node": "n1"}, NOW, "f")
    assert len(found) == MAX_LISTED_SILENCES
    for one in found:
        silences.expire(one, NOW + 1)
    assert silences.silenced_by({"node": "n1"}, NOW + 1, "f") == sorted(set(ids) - set(found))
