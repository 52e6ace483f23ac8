from __future__ import annotations

from gpuscope.scrape.config import Job, TargetGroup
from gpuscope.scrape.relabel import RelabelRule
from gpuscope.scrape.target import Dropped, Target, build_targets


def build(job: Job, *addresses: str, **labels: str) -> list[Target | Dropped]:
    return list(build_targets(job, (TargetGroup(addresses, labels),)))


def test_labels_and_url() -> None:
    job = Job("gpus", scheme="https", metrics_path="/m", params=(("a", ("1", "2")), ("b", ("x&y",))))
    (target,) = build(job, "n1:9400", rack="r")
    assert isinstance(target, Target)
    assert target.url == "https://n1:9400/m?a=1&a=2&b=x%26y"
    assert dict(target.labels) == {"instance": "n1:9400", "job": "gpus", "rack": "r"}
    assert target.discovered["__param_a"] == "1"


def test_relabelling_decides_on_address_path_parameters_and_interval() -> None:
    def rule(target: str, value: str) -> RelabelRule:
        return RelabelRule(target_label=target, replacement=value)

    job = Job(
        "j",
        params=(("a", ("1", "2")),),
        relabel=(
            rule("__address__", "other:1"),
            rule("__metrics_path__", "p"),
            rule("__param_a", "9"),
            rule("__param_c", "3"),
            rule("__scrape_interval__", "30s"),
            rule("instance", "me"),
            rule("__tmp", "gone"),
        ),
    )
    (target,) = build(job, "n1:9400")
    assert isinstance(target, Target)
    assert target.url == "http://other:1/p?a=9&a=2&c=3"
    assert target.interval == 30
    assert dict(target.labels) == {"instance": "me", "job": "j"}


def test_dropped_ones_say_why() -> None:
    dropped = build(Job("j", relabel=(RelabelRule("drop", ("__address__",), regex="a.*"),)), "a:1", "b:1")
    assert [type(one) for one in dropped] == [Dropped, Target]
    (gone,) = build(Job("j", relabel=(RelabelRule(target_label="__address__", replacement=""),)), "a:1")
    assert isinstance(gone, Dropped)
    assert "address" in gone.why
    (fast,) = build(
        Job("j", relabel=(RelabelRule(target_label="__scrape_interval__", replacement="1ms"),)), "a:1"
    )
    assert isinstance(fast, Dropped)


def test_the_same_target_twice_is_one() -> None:
    assert len(build(Job("j"), "a:1", "a:1")) == 1


def test_offsets_are_spread_and_stable() -> None:
    targets = [one for one in build(Job("j"), *(f"n{n}:9400" for n in range(200))) if isinstance(one, Target)]
    offsets = [target.offset() for target in targets]
    assert offsets == [target.offset() for target in targets]
    counts = [sum(1 for one in offsets if part * 6 <= one < part * 6 + 6) for part in range(10)]
    assert min(counts) > 5
    assert max(counts) < 45
    assert all(0 <= target.wait_seconds(1e9) < 60 for target in targets)
