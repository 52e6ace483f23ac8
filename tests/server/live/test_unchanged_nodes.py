"""Nodes that did not change are not judged again, and the picture is the same as if they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

import pytest

from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.facts import NOTHING_MISSING, Gone, Missing, Sample
from gpuscope.judge.checks.finding import Condition, SubjectKey
from gpuscope.judge.checks.judgement import Judgement, OpenEpisode
from gpuscope.judge.checks.thresholds import STALE_SECONDS
from gpuscope.serve.api_types.live_json import LivePicture
from gpuscope.serve.live.fleet_judge import MAX_JUDGEMENT_SECONDS, FleetJudge
from gpuscope.serve.live.fleet_samples import FleetSamples, PresenceSamples, by_node
from gpuscope.serve.live.picture import LivePictures
from tests.fakes import Keywords
from tests.health.fleets import HOUR, NOW, gpu, gpu_labels, node, of_gpu, process
from tests.health.test_slurm_join import board, held, slurm_job, slurm_node

NODES = ("n1", "n2", "n3", "n4", "n5")


class Pictures:
    """A server's judge and pictures, over several updates."""

    def __init__(self, judgement: Judgement | None = None) -> None:
        self._judge = FleetJudge(judgement)
        self._pictures = LivePictures("test")

    def make(self, samples: FleetSamples, now: float, missing: Missing = NOTHING_MISSING) -> LivePicture:
        return self._pictures.make(self._judge.judge(samples, missing, now))


class HistoryOfThrottling(Judgement):
    """A judgement whose only episode has a beginning from when the history is read."""

    def __init__(self) -> None:
        super().__init__(checks=())
        self.since: float | None = None

    @property
    def version(self) -> float | None:
        return self.since

    def open_now(self, began: Mapping[SubjectKey, float] | None = None) -> list[OpenEpisode]:
        labels = {**gpu_labels("0"), "reason": "hw_thermal_slowdown"}
        return [OpenEpisode(Condition(CHECKS["throttled"], labels, 1.0), self.since)]


OWNERS: tuple[Keywords, ...] = ({"slurm_job": "1"}, {"slurm_job": "2"}, {"user": "bob", "command": "x"})


def scrape(name: str, at: float, random: Random) -> list[Sample]:
    """A node of two GPUs in a random condition; times are far from every threshold."""
    samples = node(name, at=at, gpus_seen=2.0, gpus_expected=float(random.choice((2, 2, 3))))
    for index in ("0", "1"):
        samples += board(index, name) if random.random() < 0.9 else gpu(index, name, up=0.0)
        samples.append(of_gpu(index, "power_watts", random.random() * 700, name))
        samples.append(of_gpu(index, "utilization_minute_ratio", random.choice((0.1, 0.95)), name))
        samples.append(of_gpu(index, "power_minute_watts", random.choice((100.0, 600.0)), name))
        samples.append(of_gpu(index, "power_limit_watts", 700.0, name, limit="enforced"))
        samples.append(
            of_gpu(index, "throttle_reason", float(random.random() < 0.2), name, reason="hw_thermal")
        )
        for pid in random.sample(("7", "8"), random.randrange(3)):
            idle_for = random.choice((None, 10.0, 2 * HOUR))
            owner = random.choice(OWNERS)
            samples += process(index, pid, name=name, at=at, idle_for=idle_for, **owner)
    return samples


def cluster(random: Random) -> list[Sample]:
    samples = [sample for name in NODES for sample in slurm_node(name)]
    for job in random.sample(("1", "2", "3"), 2):
        samples += slurm_job(job, random.choice(("alice", "bob")))
        samples += held(job, random.choice(NODES), random.choice("01"))
    return samples


def missing_of(gone: Iterable[str], unread: Iterable[str]) -> Missing:
    return Missing(
        samples=[sample for name in gone for sample in gpu("0", name)],
        nodes={f"{name}:9400": Gone(since=NOW - 100, why="refused") for name in gone},
        unread={f"{name}:9400": NOW - 50 for name in unread},
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_picture_is_that_of_a_judge_that_judges_all_nodes(seed: int) -> None:
    random = Random(seed)
    some, every = Pictures(), Pictures()
    known: dict[str, list[Sample]] = {}
    for second in range(25):
        now = NOW + second
        for name in NODES:
            if second == 0 or random.random() < 0.15:
                known[f"{name}:9400"] = scrape(name, now, random)
            if random.random() < 0.03:
                known.pop(f"{name}:9400", None)
        if second == 0 or random.random() < 0.15:
            known["master:9400"] = cluster(random)
        gone = [name for name in ("n2", "n9") if random.random() < 0.2]
        missing = missing_of(gone, [name for name in ("n3",) if random.random() < 0.1])
        copies = {instance: list(samples) for instance, samples in known.items()}
        assert some.make(dict(known), now, missing) == every.make(copies, now, missing), second


def test_rows_of_unchanged_nodes_are_the_same_objects() -> None:
    pictures, random = Pictures(), Random(1)
    known = {f"{name}:9400": scrape(name, NOW, random) for name in NODES}
    before = pictures.make(known, NOW)
    after = pictures.make({**known, "n3:9400": scrape("n3", NOW + 1, random)}, NOW + 1)
    nodes = {row["name"] for row in after["nodes"] if any(row is earlier for earlier in before["nodes"])}
    gpus = {row["node"] for row in after["gpus"] if any(row is earlier for earlier in before["gpus"])}
    assert nodes == gpus == set(NODES) - {"n3"}


def test_a_node_without_new_samples_becomes_stale() -> None:
    pictures = Pictures()
    known = by_node([*node(), *gpu("0", busy=0.5)])
    states = [
        pictures.make(known, NOW + second)["gpus"][0]["state"] for second in range(int(STALE_SECONDS) + 3)
    ]
    assert states == ["busy"] * (int(STALE_SECONDS) + 1) + ["stale"] * 2


def test_time_passes_for_a_node_without_new_samples() -> None:
    """The idle time of a process is an age: its beginning stays where it is, to the interval of the judge."""
    pictures = Pictures()
    known = by_node([*node(at=NOW + 20), *gpu("0", busy=0.0), *process("0", idle_for=100.0, user="a")])
    begins = {
        pictures.make(known, NOW + second)["sessions"][0]["idle_since"]
        for second in range(int(MAX_JUDGEMENT_SECONDS))
    }
    assert begins == {NOW - 100}


def test_a_beginning_that_the_history_knows_reaches_the_rows_of_an_unchanged_node() -> None:
    history = HistoryOfThrottling()
    pictures = Pictures(history)
    known = by_node([*node(), *gpu("0", busy=0.9)])
    before = pictures.make(known, NOW)
    assert before["gpus"][0]["state"] == "throttled"
    assert "since" not in before["gpus"][0]
    history.since = NOW - 3600
    after = pictures.make(known, NOW + 1)
    assert after["gpus"][0]["since"] == after["findings"][0]["since"] == NOW - 3600


def test_presence_needs_few_samples_and_follows_changes() -> None:
    presence = PresenceSamples()
    first = [
        *node(),
        *gpu("0"),
        *gpu("1"),
        ("gpuscope_source_up", {"instance": "n1:9400", "source": "nvml"}, 1.0),
    ]
    assert [name for name, _, _ in presence.select({"n1:9400": first})] == [
        "gpuscope_agent_snapshot_timestamp_seconds",
        "gpuscope_gpu_info",
    ]
    second = [*node(), ("gpuscope_source_up", {"instance": "n1:9400", "source": "nvml"}, 0.0)]
    assert [name for name, _, _ in presence.select({"n1:9400": second})] == [
        "gpuscope_agent_snapshot_timestamp_seconds",
        "gpuscope_source_up",
    ]
