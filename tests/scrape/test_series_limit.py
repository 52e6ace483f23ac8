"""Scrapes and local ingestion when the store's series limit is reached."""

from __future__ import annotations

from pathlib import Path

from gpuscope.history.scrape.config import ScrapeConfig, read_config
from gpuscope.history.scrape.local_feeds import LocalIngester
from gpuscope.history.store import Store, StoreOptions
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample
from gpuscope.model.series import Matcher, MatchOp
from tests.scrape.test_ingest import NOW, Rig


def test_a_scrape_continues_with_its_existing_series(tmp_path: Path) -> None:
    with Store(tmp_path, StoreOptions(max_series=7)) as store:
        rig = Rig(store)
        assert rig.scrape("a 1\nb 1\n") == ""  # five more are the scrape's own
        assert rig.scrape("a 2\nnew 1\nb 2\nnewer 1 1700000000000\n") == (
            "2 series refused: the store has reached its limit of 7 series (max_series)"
        )
        assert rig.scrape("a 3\nnew 2\n").startswith("2 series refused")
        assert rig.samples() == {
            "a instance=n1,job=j": [(1, 1.0), (2, 2.0), (3, 3.0)],
            "b instance=n1,job=j": [(1, 1.0), (2, 2.0), (3, "stale")],
        }
        assert rig.report("up") == [1, 1, 1]
        assert rig.report("scrape_series_added") == [2, 0, 0]
        store.delete_series([Matcher("__name__", MatchOp.EQUAL, "b")])
        assert rig.scrape("a 4\nnew 3\n") == ""
        assert rig.samples()["new instance=n1,job=j"] == [(4, 3.0)]


def test_refused_series_are_requested_again(tmp_path: Path) -> None:
    with Store(tmp_path, StoreOptions(max_series=1)) as store:
        rig = Rig(store)
        assert rig.scrape("a 1\nb 1\n").startswith("1 series refused")
        store.write_side().series_limit.max_series = 7
        assert rig.scrape("a 2\nb 2\n") == ""
        assert rig.samples()["b instance=n1,job=j"] == [(2, 2.0)]


def test_local_ingester(tmp_path: Path) -> None:
    with Store(tmp_path, StoreOptions(max_series=2)) as store:
        target = LocalIngester(store, {"job": "j", "instance": "n"})
        samples = [Sample(LabelSet((("gpu", str(n)),)), float(n)) for n in range(3)]
        family = MetricFamily("watts", "gauge", "", samples)
        assert target.submit([family], NOW).result().accepted == 5 + 2
        store.write_side().series_limit.max_series = 8
        assert target.submit([family], NOW + 1000).result().accepted == 5 + 3


def test_the_out_of_order_window_is_read(tmp_path: Path) -> None:
    def read(storage: object) -> ScrapeConfig:
        return read_config({"storage": storage}, "p.yml", tmp_path)

    assert read_config({}, "p.yml", tmp_path).out_of_order_seconds == 0
    assert read({"tsdb": {"out_of_order_time_window": "6h"}}).out_of_order_seconds == 6 * 3600
    found = read({"tsdb": {"out_of_order_time_window": "30m"}, "exemplars": {"max_exemplars": "1"}})
    assert (found.out_of_order_seconds, found.warnings) == (
        1800,
        ("p.yml: storage: exemplars is not supported and ignored",),
    )
