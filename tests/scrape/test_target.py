from __future__ import annotations

import pytest

from gpuscope.history.scrape.config import ScrapeJob, TargetGroup
from gpuscope.history.scrape.discovery import Discovery
from gpuscope.history.scrape.relabel import RelabelRule
from gpuscope.history.scrape.scraper import discover_targets
from gpuscope.history.scrape.target import DroppedTarget, ScrapeTarget, build_targets


def build(job: ScrapeJob, *addresses: str, **labels: str) -> list[ScrapeTarget | DroppedTarget]:
    return list(build_targets(job, (TargetGroup(addresses, labels),)))


def test_labels_and_url() -> None:
    job = ScrapeJob("gpus", scheme="https", metrics_path="/m", params=(("a", ("1", "2")), ("b", ("x&y",))))
    (target,) = build(job, "n1:9400", rack="r")
    assert isinstance(target, ScrapeTarget)
    assert target.url == "https://n1:9400/m?a=1&a=2&b=x%26y"
    assert dict(target.labels) == {"instance": "n1:9400", "job": "gpus", "rack": "r"}
    assert target.discovered["__param_a"] == "1"


def test_relabelling_sets_address_path_parameters_and_interval() -> None:
    def rule(target: str, value: str) -> RelabelRule:
        return RelabelRule(target_label=target, replacement=value)

    job = ScrapeJob(
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
    assert isinstance(target, ScrapeTarget)
    assert target.url == "http://other:1/p?a=9&a=2&c=3"
    assert target.interval == 30
    assert dict(target.labels) == {"instance": "me", "job": "j"}


@pytest.mark.parametrize(
    ("interval", "text"), [(60, "1m"), (1.5, "1s500ms"), (86_400, "1d"), (604_800, "1w"), (129_600, "1d12h")]
)
def test_intervals_are_written_as_by_prometheus(interval: float, text: str) -> None:
    (target,) = build(ScrapeJob("j", interval=interval, timeout=interval), "n1:9400")
    assert isinstance(target, ScrapeTarget)
    assert target.discovered["__scrape_interval__"] == target.discovered["__scrape_timeout__"] == text
    assert (target.interval_text, target.timeout_text) == (text, text)


def test_dropped_targets_have_a_reason() -> None:
    dropped = build(ScrapeJob("j", relabel=(RelabelRule("drop", ("__address__",), regex="a.*"),)), "a:1", "b:1")
    assert [type(one) for one in dropped] == [DroppedTarget, ScrapeTarget]
    (gone,) = build(ScrapeJob("j", relabel=(RelabelRule(target_label="__address__", replacement=""),)), "a:1")
    assert isinstance(gone, DroppedTarget)
    assert "address" in gone.why
    (fast,) = build(
        ScrapeJob("j", relabel=(RelabelRule(target_label="__scrape_interval__", replacement="1ms"),)), "a:1"
    )
    assert isinstance(fast, DroppedTarget)


def test_of_equal_targets_the_last_is_kept() -> None:
    groups = [TargetGroup(("a:1",), {"__meta_x": value}) for value in ("1", "2")]
    found = discover_targets(Discovery(ScrapeJob("j", static=tuple(groups))), 10).targets
    assert [target.discovered["__meta_x"] for target in found.values()] == ["2"]


def test_offsets_are_spread_and_stable() -> None:
    targets = [
        one
        for one in build(ScrapeJob("j"), *(f"n{n}:9400" for n in range(200)))
        if isinstance(one, ScrapeTarget)
    ]
    offsets = [target.offset() for target in targets]
    assert offsets == [target.offset() for target in targets]
    counts = [sum(1 for one in offsets if part * 6 <= one < part * 6 + 6) for part in range(10)]
    assert min(counts) > 5
    assert max(counts) < 45
    assert all(0 <= target.wait_seconds(1e9) < 60 for target in targets)
    for target in targets[:10]:
        scraped_at = 1e9 + target.wait_seconds(1e9)
        assert scraped_at % target.interval == pytest.approx(target.offset(), abs=1e-5)
