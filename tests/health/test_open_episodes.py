"""When an episode began, how long it is remembered, and what explains it: the part without a store."""

from __future__ import annotations

from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.finding import Condition
from gpuscope.judge.checks.judgement import Judgement, OpenEpisode, without_explained
from tests.health.fleets import NOW, gpu_labels


def lost_at(index: str, name: str = "n1") -> Condition:
    return Condition(CHECKS["gpu_lost"], gpu_labels(index, name), 0.0)


def test_the_time_between_two_evaluations_decides_whether_a_beginning_was_seen() -> None:
    for seconds, since in ((0.0, NOW), (0.5, NOW + 0.5), (150.0, NOW + 150), (150.5, None)):
        episodes = Judgement()
        episodes.update("gpu_lost", [], NOW)
        episodes.update("gpu_lost", [lost_at("0")], NOW + seconds)
        assert [one.since for one in episodes.open_now()] == [since], seconds


def test_an_episode_that_does_not_hold_is_remembered_for_less_than_five_minutes() -> None:
    for seconds, since in ((299.5, NOW), (300.0, NOW + 300)):
        episodes = Judgement()
        episodes.update("gpu_lost", [], NOW - 1)
        episodes.update("gpu_lost", [lost_at("0")], NOW)
        for at in (0.5, 100.0, 200.0):
            episodes.update("gpu_lost", [], NOW + at)
        episodes.update("gpu_lost", [lost_at("0")], NOW + seconds)
        assert [one.since for one in episodes.open_now()] == [since], seconds


def test_a_value_that_is_an_age_and_a_lead_say_when_an_episode_began() -> None:
    """Ages that differ by less than a minute mean the same beginning; by a minute they do not."""
    by_age = next(check for check in CHECKS.values() if check.value_is_age)
    episodes = Judgement()
    for at, age, since in ((0.0, 500.0, NOW - 500), (60.0, 501.0, NOW - 500), (120.0, 680.0, NOW - 560)):
        held = Condition(by_age, gpu_labels("0", "n1"), age)
        episodes.update(by_age.kind, [held], NOW + at)
        assert [one.since for one in episodes.open_now()] == [since]
    led = next(check for check in CHECKS.values() if check.lead_seconds and not check.value_is_age)
    episodes.update(led.kind, [], NOW)
    episodes.update(led.kind, [Condition(led, gpu_labels("0", "n1"), 1.0)], NOW + 10)
    begins = [one.since for one in episodes.open_now() if one.condition.check is led]
    assert begins == [NOW + 10 - led.lead_seconds]


def test_the_history_dates_an_episode_that_held_from_the_start() -> None:
    episodes = Judgement()
    episodes.update("gpu_lost", [lost_at("0")], NOW)
    assert [one.since for one in episodes.open_now({lost_at("0").subject: NOW - 40})] == [NOW - 40]
    seen = Judgement()
    seen.update("gpu_lost", [], NOW - 1)
    seen.update("gpu_lost", [lost_at("0")], NOW)
    assert [one.since for one in seen.open_now({lost_at("0").subject: NOW - 60})] == [NOW], "a late scrape"
    assert [one.since for one in seen.open_now({lost_at("0").subject: NOW - 60.5})] == [NOW - 60.5]


def test_a_clock_that_was_set_back_forgets_what_does_not_hold() -> None:
    episodes = Judgement()
    episodes.update("gpu_lost", [], NOW - 1)
    episodes.update("gpu_lost", [lost_at("0")], NOW)
    episodes.update("gpu_lost", [], NOW - 10)
    episodes.update("gpu_lost", [lost_at("0")], NOW - 5)
    assert [one.since for one in episodes.open_now()] == [NOW - 5]


def test_what_is_seen_not_to_hold_at_once_is_still_remembered() -> None:
    episodes = Judgement()
    episodes.update("gpu_lost", [], NOW - 1)
    episodes.update("gpu_lost", [lost_at("0")], NOW)
    episodes.update("gpu_lost", [], NOW)
    episodes.update("gpu_lost", [lost_at("0")], NOW + 20)
    assert [one.since for one in episodes.open_now()] == [NOW]


def left_of(*conditions: Condition) -> list[str]:
    return [
        one.condition.check.kind for one in without_explained([OpenEpisode(each, NOW) for each in conditions])
    ]


def of(kind: str, index: str = "", name: str = "n1") -> Condition:
    labels = gpu_labels(index, name) if index else {"instance": f"{name}:9400"}
    return Condition(CHECKS[kind], labels, 1.0)


def test_what_explains_an_episode_is_on_its_gpu_or_its_node() -> None:
    assert left_of(of("gpu_lost", "0"), of("xid_hardware", "0")) == ["gpu_lost"]
    assert left_of(of("gpu_lost", "1"), of("xid_hardware", "0")) == ["gpu_lost", "xid_hardware"]
    assert left_of(of("node_down"), of("gpu_lost", "0")) == ["node_down"]
    assert left_of(of("node_down", name="n2"), of("gpu_lost", "0")) == ["node_down", "gpu_lost"]


def test_a_lost_gpu_explains_that_its_node_has_one_less_and_not_another_gpus_trouble() -> None:
    assert left_of(of("gpu_lost", "0"), of("gpu_count_dropped")) == ["gpu_lost"]
    assert left_of(of("gpu_lost", "0", "n2"), of("gpu_count_dropped")) == ["gpu_lost", "gpu_count_dropped"]


def test_a_service_explains_on_every_node_and_a_node_does_not_explain_a_service_of_another() -> None:
    assert left_of(of("slurm_down", name="head"), of("queue_waits")) == ["slurm_down"]
    assert left_of(of("node_down"), of("slurm_down", name="head")) == ["node_down", "slurm_down"]
    everywhere = Condition(CHECKS["gpu_metrics_missing"], {}, 1.0)
    assert left_of(of("node_down"), everywhere) == ["node_down"]
