from __future__ import annotations

import time
from pathlib import Path

from gpuscope.history.promql import Engine
from gpuscope.history.promql.result import Vector
from gpuscope.history.scrape.local_feeds import LocalIngester
from gpuscope.history.store import Store
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample

NOW = int(time.time()) * 1000


def family(*samples: tuple[dict[str, str], float]) -> MetricFamily:
    return MetricFamily("m", "gauge", "h", [Sample(LabelSet.of(labels), value) for labels, value in samples])


def found(store: Store, query: str, at: int) -> dict[tuple[tuple[str, str], ...], float]:
    result = Engine(store).instant(query, at)
    assert isinstance(result, Vector)
    return dict(zip(result.labels, result.values.tolist(), strict=True))


def test_samples_get_the_targets_labels_and_keep_their_own(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        target = LocalIngester(store, {"job": "gpuscope", "instance": "n1"})
        target.submit([family(({"gpu": "0"}, 0.0), ({"job": "mine"}, 2.0))], NOW).result()
        own = (("__name__", "m"), ("instance", "n1"), ("job", "gpuscope"))
        assert found(store, "m", NOW) == {
            tuple(sorted((*own, ("gpu", "0")))): 0.0,
            tuple(sorted((*own, ("exported_job", "mine")))): 2.0,
        }
        assert list(found(store, "up", NOW).values()) == [1.0]
        assert list(found(store, "scrape_samples_scraped", NOW).values()) == [2.0]


def test_a_missing_series_ends_at_once(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        target = LocalIngester(store, {"job": "gpuscope", "instance": "n1"})
        target.submit([family(({"gpu": "0"}, 1.0), ({"gpu": "1"}, 1.0))], NOW).result()
        target.submit([family(({"gpu": "0"}, 1.0))], NOW + 5000).result()
        assert len(found(store, "m", NOW)) == 2
        assert len(found(store, "m", NOW + 5000)) == 1
        target.close(NOW + 10_000)
        assert found(store, "m", NOW + 10_000) == {}
        assert found(store, "up", NOW + 10_000) == {}


def test_metadata(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        target = LocalIngester(store, {"job": "gpuscope", "instance": "n1"})
        target.submit([family(({}, 1.0))], NOW).result()
        assert target.metadata() == {"m": [{"type": "gauge", "help": "h", "unit": ""}]}


def test_families_may_change_their_order_and_their_series(tmp_path: Path) -> None:
    """Series are remembered by family; the values must follow them."""

    def named(name: str, *samples: tuple[dict[str, str], float]) -> MetricFamily:
        return MetricFamily(
            name, "gauge", "h", [Sample(LabelSet.of(labels), value) for labels, value in samples]
        )

    with Store(tmp_path) as store:
        target = LocalIngester(store, {"instance": "n1"})
        for step, families in enumerate(
            (
                [named("a", ({}, 1.0)), named("b", ({}, 2.0))],
                [named("b", ({}, 20.0)), named("a", ({}, 10.0))],
                [named("a", ({}, 3.0), ({"gpu": "1"}, 4.0)), named("c", ({}, 6.0)), named("b", ({}, 5.0))],
                [named("a", ({"gpu": "1"}, 7.0), ({}, 8.0)), named("b", ({}, 9.0))],
            )
        ):
            at = NOW + 5000 * step
            target.submit(families, at).result()
            expected = {
                tuple(sorted((("__name__", family.name), ("instance", "n1"), *labels.pairs))): value
                for family in families
                for labels, value in family.samples
            }
            assert found(store, '{__name__=~"a|b|c"}', at) == expected
