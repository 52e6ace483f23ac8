"""Transitions of alerts against a plain model that keeps the whole history instead of states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.judge.rules.alert_state import ActiveAlert, AlertState, AlertTable, TooManyAlerts
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.model.series import Labels

LABELS = (("alertname", "A"),)


def update(table: AlertTable, at: int, *, present: bool, limit: int = 0) -> list[ActiveAlert]:
    new = ActiveAlert(LABELS, (), 1.0, at * SECOND_NS)
    return table.update({LABELS: new} if present else {}, at * SECOND_NS, limit)


def model_state(history: list[bool], hold: int, keep: int) -> str:
    """The state after evaluations one second apart: replayed from the start, in whole seconds."""
    active_at: int | None = None
    firing = False
    absent_since: int | None = None
    for at, present in enumerate(history):
        if present:
            absent_since = None
            if active_at is None:
                active_at, firing = at, False
        elif active_at is not None and not firing:
            active_at = None
        elif active_at is not None:
            absent_since = at if absent_since is None else absent_since
            if keep == 0 or at - absent_since >= keep:
                active_at = absent_since = None
        if active_at is not None and at - active_at >= hold:
            firing = True
    if active_at is None:
        return "inactive"
    return "firing" if firing else "pending"


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 5), st.integers(0, 5))
def test_states_are_those_of_the_model(history: list[bool], hold: int, keep: int) -> None:
    table = AlertTable(hold * SECOND_NS, keep * SECOND_NS)
    for at, present in enumerate(history):
        active = update(table, at, present=present)
        state = active[0].state.text if active else "inactive"
        assert state == model_state(history[: at + 1], hold, keep)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 4), st.integers(0, 4))
def test_a_state_is_saved_whenever_it_changes(history: list[bool], hold: int, keep: int) -> None:
    table = AlertTable(hold * SECOND_NS, keep * SECOND_NS)
    before: object = None
    for at, present in enumerate(history):
        table.has_changed = False
        update(table, at, present=present)
        now = [
            (a.state, a.active_at_ns, a.fired_at_ns, a.resolved_at_ns, a.keep_firing_since_ns) for a in table
        ]
        if now != (before or []) and not (before and now and now[0][:4] == before[0][:4]):  # type: ignore[index]
            assert table.has_changed
        before = now


def test_keep_firing_for_ends_exactly_when_its_time_is_over() -> None:
    table = AlertTable(0, 5 * SECOND_NS)
    update(table, 0, present=True)
    states = [bool(update(table, at, present=False)) for at in range(10, 17)]
    assert states == [True] * 5 + [False] * 2  # absent from 10 on; 15 is the first evaluation after 5 s


def test_keep_firing_for_counts_from_the_last_time_the_alert_was_present() -> None:
    table = AlertTable(0, 5 * SECOND_NS)
    presence = [(0, True), (1, False), (4, True), (5, False), (9, False), (10, False)]
    states = [bool(update(table, at, present=present)) for at, present in presence]
    assert states == [True, True, True, True, True, False]


def test_a_resolved_alert_is_kept_for_fifteen_minutes_and_comes_back_as_a_new_one() -> None:
    table = AlertTable(0, 0)
    update(table, 0, present=True)
    update(table, 1, present=False)
    last = 1 + 15 * 60
    update(table, last, present=False)
    assert len(table) == 1
    table.has_changed = False
    update(table, last + 1, present=False)
    assert len(table) == 0
    assert table.has_changed, "the state file must forget it too"
    update(table, last + 2, present=True)
    update(table, last + 3, present=False)
    update(table, last + 9, present=True)
    (alert,) = table
    assert alert.active_at_ns == (last + 9) * SECOND_NS
    assert alert.resolved_at_ns is None


def test_raising_for_makes_a_firing_alert_pending_again() -> None:
    table, longer = AlertTable(0, 0), AlertTable(10 * SECOND_NS, 0)
    update(table, 0, present=True)
    longer.copy_from(table)
    (alert,) = update(longer, 5, present=True)
    assert (alert.state, alert.fired_at_ns, alert.last_sent_at_ns) == (AlertState.PENDING, None, None)
    (alert,) = update(longer, 10, present=True)
    assert (alert.state, alert.fired_at_ns) == (AlertState.FIRING, 10 * SECOND_NS)


def test_sending_again_needs_more_than_the_delay() -> None:
    alert = ActiveAlert(LABELS, (), 1.0, 0, AlertState.FIRING, fired_at_ns=0)
    assert alert.needs_sending(0, 60)
    alert.last_sent_at_ns = 0
    assert not alert.needs_sending(60, 60)
    assert alert.needs_sending(61, 60)
    alert.state, alert.resolved_at_ns = AlertState.INACTIVE, 30
    assert alert.needs_sending(31, 60)
    alert.state = AlertState.PENDING
    assert not alert.needs_sending(100, 60)


def test_a_restored_alert_may_be_absent_in_two_evaluations() -> None:
    table = AlertTable(0, 0)
    saved = ActiveAlert(LABELS, (), 1.0, 0, AlertState.FIRING, fired_at_ns=0)
    table.restore(iter([saved]))
    assert [alert.state for alert in update(table, 10, present=False)] == [AlertState.FIRING]
    assert [alert.state for alert in update(table, 11, present=False)] == [AlertState.FIRING]
    assert update(table, 12, present=False) == []
    assert saved.resolved_at_ns == 12 * SECOND_NS


def test_a_held_pending_alert_does_not_fire_while_it_is_absent() -> None:
    table = AlertTable(5 * SECOND_NS, 0)
    table.restore(iter([ActiveAlert(LABELS, (), 1.0, 0)]))
    assert [alert.state for alert in update(table, 10, present=False)] == [AlertState.PENDING]
    assert [alert.state for alert in update(table, 11, present=True)] == [AlertState.FIRING]


def test_a_restored_alert_that_was_seen_is_held_no_longer() -> None:
    table = AlertTable(0, 0)
    table.restore(iter([ActiveAlert(LABELS, (), 1.0, 0, AlertState.FIRING, fired_at_ns=0)]))
    assert update(table, 10, present=True)
    assert update(table, 11, present=False) == []


def test_an_alert_that_came_after_the_restart_is_not_held() -> None:
    other = (("alertname", "B"),)
    table = AlertTable(0, 0)
    table.restore(iter([ActiveAlert(other, (), 1.0, 0, AlertState.FIRING, fired_at_ns=0)]))
    update(table, 10, present=True)
    assert [alert.labels for alert in update(table, 11, present=False)] == [other]


def test_too_many_alerts_are_forgotten_and_that_is_saved() -> None:
    table = AlertTable(0, 0)
    assert not table.has_changed
    alerts: dict[Labels, ActiveAlert] = {
        labels: ActiveAlert(labels, (), 1.0, 0) for labels in (LABELS, (("alertname", "B"),))
    }
    assert len(table.update(alerts, 0, limit=2)) == 2
    table.has_changed = False
    with pytest.raises(TooManyAlerts, match="exceeded limit of 1 with 2 alerts"):
        table.update(alerts, SECOND_NS, limit=1)
    assert len(table) == 0
    assert table.has_changed


def test_what_was_taken_to_send_counts_as_sent() -> None:
    table = AlertTable(0, 0)
    update(table, 0, present=True)
    (alert,) = table.take_to_send(0, 60 * SECOND_NS)
    assert alert.last_sent_at_ns == 0
    assert table.take_to_send(60 * SECOND_NS, 60 * SECOND_NS) == []
    assert table.take_to_send(61 * SECOND_NS, 60 * SECOND_NS) == [alert]
