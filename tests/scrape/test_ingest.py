"""From a scraped body to stored series."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.scrape.config import ScrapeJob
from gpuscope.history.scrape.fetch import Fetched, ScrapeError
from gpuscope.history.scrape.ingest import SCRAPES_AFTER_MISSES, TargetIngester, merge_labels
from gpuscope.history.scrape.job_options import JobLimits
from gpuscope.history.scrape.relabel import RelabelRule
from gpuscope.history.scrape.target import ScrapeTarget
from gpuscope.history.scrape.target_appender import Report, TargetAppender
from gpuscope.history.store import Store
from gpuscope.model.exposition.series_text import TextLimits
from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, MatchOp
from tests.examples import examples

NOW = time.time_ns() // 1_000_000
REPORTS = ("up", "scrape_")


class Rig:
    """One target and a store; each `scrape` is one second later."""

    def __init__(self, store: Store, **job: Any) -> None:
        self.store = store
        labels = (("instance", "n1"), ("job", "j"))
        target = ScrapeTarget(ScrapeJob("j", **job), "http://n1/metrics", labels, {}, 15.0, 10.0)
        self.appender = TargetAppender(store, target.name, dict(labels))
        self.ingester = TargetIngester(target, self.appender)
        self.at = NOW - 600_000

    def scrape(self, text: str, openmetrics: bool = False) -> str:
        self.at += 1000
        taken = self.ingester.ingest(Fetched(text.encode(), openmetrics), self.at, time.monotonic())
        taken.stored.result()
        return taken.note

    def scrape_quickly(self, text: str) -> bool:
        """As the scrape loop; returns whether only values were read."""
        fetched, at = Fetched(text.encode(), False), self.tick()
        quick = self.ingester.ingest_values(fetched, at, time.monotonic())
        (quick or self.ingester.ingest(fetched, at, time.monotonic())).stored.result()
        return quick is not None

    def tick(self) -> int:
        self.at += 1000
        return self.at

    def fail(self) -> None:
        self.ingester.fail(self.tick(), 0.5).result()

    def all(self) -> dict[Labels, list[tuple[int, float]]]:
        matchers = [Matcher("__name__", MatchOp.REGEX, ".+")]
        found = {}
        for one in self.store.select(matchers, 0, NOW + 10**6):
            seconds = ((one.timestamps - (NOW - 600_000)) // 1000).tolist()
            found[one.labels] = list(zip(seconds, one.values.tolist(), strict=True))
        return found

    def samples(self) -> dict[str, list[tuple[int, float | str]]]:
        """Values by label text, without `up` and `scrape_*`; staleness markers as "stale"."""
        found: dict[str, list[tuple[int, float | str]]] = {}
        for labels, rows in self.all().items():
            table = dict(labels)
            name = table.pop("__name__")
            if not name.startswith(REPORTS):
                rest = ",".join(f"{k}={v}" for k, v in table.items())
                found[f"{name} {rest}"] = [(at, "stale" if is_stale(value) else value) for at, value in rows]
        return found

    def report(self, name: str) -> list[float]:
        return [
            value
            for labels, rows in self.all().items()
            if dict(labels)["__name__"] == name
            for _, value in rows
        ]


def is_stale(value: float) -> bool:
    return bool(np.float64(value).view(np.int64) == STALE_NAN_BITS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data") as store:
        yield store


def test_values_reports_and_staleness(store: Store) -> None:
    rig = Rig(store)
    rig.scrape('a 1\nb{x="1"} 2\n')
    rig.scrape("a 3\n")
    rig.fail()
    rig.scrape("a 5\n")
    assert rig.samples() == {
        "a instance=n1,job=j": [(1, 1.0), (2, 3.0), (3, "stale"), (4, 5.0)],
        "b instance=n1,job=j,x=1": [(1, 2.0), (2, "stale")],
    }
    assert rig.report("up") == [1, 1, 0, 1]
    assert rig.report("scrape_samples_scraped") == [2, 1, 0, 1]
    assert rig.report("scrape_series_added") == [2, 0, 0, 0]
    assert rig.report("scrape_duration_seconds")[2] == 0.5


def test_up_of_a_removed_target_ends(store: Store) -> None:
    rig = Rig(store)
    rig.scrape("a 1\n")
    rig.appender.close(rig.at + 1000)
    assert rig.samples()["a instance=n1,job=j"][-1] == (2, "stale")
    assert is_stale(rig.report("up")[-1])


def test_honor_labels(store: Store) -> None:
    Rig(store).scrape('a{job="own",exported_job="x"} 1\n')
    Rig(store, honor_labels=True).scrape('b{job="own",instance=""} 1\n')
    assert set(Rig(store).samples()) == {
        "a exported_exported_job=own,exported_job=x,instance=n1,job=j",
        "b job=own",
    }


def test_explicit_timestamps(store: Store) -> None:
    at = NOW - 300_000
    rig = Rig(store)
    rig.scrape(f"a 1 {at}\n")
    rig.scrape("b 1\n")
    assert rig.samples()["a instance=n1,job=j"] == [(300, 1.0)], "its sender decides when it ends"
    other = Rig(store, honor_timestamps=False)
    other.scrape(f"c 1 {at}\n")
    assert other.samples()["c instance=n1,job=j"] == [(1, 1.0)]
    tracked = Rig(store, track_timestamps_staleness=True)
    tracked.scrape(f"d 1 {NOW - 600_000 + 500}\n")
    tracked.scrape("e 1\n")
    assert tracked.samples()["d instance=n1,job=j"] == [(0, 1.0), (2, "stale")]


def test_openmetrics_timestamps_are_seconds(store: Store) -> None:
    rig = Rig(store)
    rig.scrape(f"a_total 1 {(NOW - 300_000) / 1000}\n# EOF\n", openmetrics=True)
    assert rig.samples()["a_total instance=n1,job=j"] == [(300, 1.0)]


def test_metric_relabelling(store: Store) -> None:
    rig = Rig(
        store,
        metric_relabel=(
            RelabelRule("drop", ("__name__",), regex="go_.*"),
            RelabelRule("labeldrop", regex="pid"),
        ),
    )
    rig.scrape('go_gc 1\na{pid="7"} 2\n')
    assert rig.samples() == {"a instance=n1,job=j": [(1, 2.0)]}
    assert rig.report("scrape_samples_scraped") == [2]
    assert rig.report("scrape_samples_post_metric_relabeling") == [1]


def test_the_first_of_duplicate_series_counts(store: Store) -> None:
    rig = Rig(store, metric_relabel=(RelabelRule("labeldrop", regex="pid"),))
    note = rig.scrape('a{pid="1"} 1\na{pid="2"} 2\nb 3\nb 3\n')
    assert note.startswith("2 samples dropped")
    assert rig.samples() == {"a instance=n1,job=j": [(1, 1.0)], "b instance=n1,job=j": [(1, 3.0)]}
    assert rig.report("up") == [1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a 1\nb\n", "line 3"),
        ("a 1 # x\n", "line 2"),
        ("a{x=1} 1\n", "line 2"),
        ("<html>\n", "line 2"),
        ("a 1\n" * 11, "sample_limit"),
        ("".join(f"a{n} 1\n" for n in range(5000)), "sample_limit"),
        ("#\n" * 20_000, "lines are too many"),
        (f"# HELP a {'x' * (1 << 20)}\n", "scrape_max_line_bytes"),
        ('a{b="1",c="2",d="3",e="4",f="5"} 1\n', "label_limit"),
        (f'a{{{"n" * 40}="1"}} 1\n', "label_name_length_limit"),
        (f'a{{b="{"v" * 60}"}} 1\n', "label_value_length_limit"),
    ],
)
def test_a_refused_scrape_creates_no_series(store: Store, text: str, why: str) -> None:
    rig = Rig(store, limits=JobLimits(samples=10, labels=6, label_name_length=30, label_value_length=50))
    rig.scrape("ok 1\n")
    before = store.stats().series
    for _ in range(2):
        with pytest.raises(ScrapeError, match=why):
            rig.scrape("new_series 1\n" + text)
    assert store.stats().series == before
    rig.scrape("ok 2\nnew_series 3\n")
    assert rig.samples()["new_series instance=n1,job=j"] == [(4, 3.0)]


def test_invalid_utf8(store: Store) -> None:
    rig = Rig(store)
    with pytest.raises(ScrapeError, match="UTF-8"):
        rig.ingester.ingest(Fetched(b'a{x="\xff"} 1\n', False), NOW, 0.0)
    with pytest.raises(ScrapeError, match="EOF"):
        rig.ingester.ingest(Fetched(b"a 1\n", True), NOW, 0.0)


def test_ids_are_resolved_again_after_series_were_removed(store: Store) -> None:
    rig = Rig(store)
    rig.scrape("a 1\nb 1\n")
    store.delete_series([Matcher("__name__", MatchOp.EQUAL, "a")])
    rig.scrape("a 2\nb 2\n")
    rig.scrape("a 3\nb 3\n")
    assert rig.samples()["a instance=n1,job=j"][-1] == (3, 3.0)
    assert rig.samples()["b instance=n1,job=j"] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_memory_is_bounded_under_series_churn(store: Store) -> None:
    rig = Rig(store)
    for number in range(30):
        rig.scrape("".join(f'a{{pid="{number * 100 + at}"}} 1\n' for at in range(100)))
    assert rig.ingester.cached_series() < 1600


def test_memory_is_bounded_under_changing_comments(store: Store) -> None:
    rig = Rig(store)
    for number in range(3):
        rig.scrape("a 1\n" + "".join(f"# HELP h{number}_{at} x\n" for at in range(15_000)))
    assert len(rig.ingester.metadata) < 10_000, "1 MiB of metadata is remembered"


def test_staleness_markers_are_written_after_the_store_was_full(store: Store) -> None:
    rig = Rig(store)
    rig.scrape("a 1\nb 1\n")
    rig.at += 1000
    rig.appender.submit(rig.at, (), (), Report(False, 0.0))
    rig.appender.restore_alive()
    rig.scrape("b 2\n")
    assert rig.samples()["a instance=n1,job=j"][-1][1] == "stale"


_TEXTS = st.lists(
    st.sampled_from(
        [
            'a{x="1"} 1',
            "a 2",
            "b NaN",
            "c +Inf",
            "# TYPE a gauge",
            "",
            "d 1 1000",
            "e",
            "{",
            "a{} 3",
            'f{job="x"} 1',
        ]
    ),
    max_size=8,
).map("\n".join) | st.text(max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
@given(texts=st.lists(_TEXTS, max_size=4), openmetrics=st.booleans())
def test_any_text_is_ingested_or_refused(store: Store, texts: list[str], openmetrics: bool) -> None:
    rig = Rig(store)
    for text in texts:
        with contextlib.suppress(ScrapeError):
            rig.scrape(text, openmetrics)


_LINES = st.lists(st.sampled_from(["a", 'a{x="1"}', "b", 'drop{x="2"}', "# HELP a x", "d"]), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60), deadline=None)
@given(
    scrapes=st.lists(st.tuples(_LINES, st.integers(0, 3), st.booleans()), max_size=8),
    repeats=st.integers(1, 3),
)
def test_quick_scrapes_store_what_whole_ones_store(
    tmp_path_factory: pytest.TempPathFactory, scrapes: list[tuple[list[str], int, bool]], repeats: int
) -> None:
    """`ingest_values` where it can, as the scrape loop does, against parsing every text as a whole."""
    rule = RelabelRule("drop", ("__name__",), regex="drop")
    with (
        Store(tmp_path_factory.mktemp("quick")) as one,
        Store(tmp_path_factory.mktemp("whole")) as two,
    ):
        quick, whole = Rig(one, metric_relabel=(rule,)), Rig(two, metric_relabel=(rule,))
        for lines, value, fails in [scrape for scrape in scrapes for _ in range(repeats)]:
            text = "\n".join(line if line[0] == "#" else f"{line} {value}" for line in lines)
            if fails:
                quick.fail()
                whole.fail()
            quick.scrape_quickly(text)
            whole.ingester.ingest(Fetched((text + "\n# " + str(whole.at)).encode(), False), whole.tick(), 0.0)
        assert quick.samples() == whole.samples()
        for name in ("up", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling"):
            assert quick.report(name) == whole.report(name)


def test_a_repeated_scrape_needs_no_thread(store: Store) -> None:
    rig = Rig(store)
    assert not rig.scrape_quickly("a 1\nb 2\n")
    assert rig.scrape_quickly("a 5\nb 2\n")
    assert not rig.scrape_quickly("a 5\nc 2\n"), "another series"
    assert rig.scrape_quickly("a 6\nc 2\n")
    rig.fail()
    assert not rig.scrape_quickly("a 7\nc 2\n"), "after a failed scrape all series begin again"
    assert rig.scrape_quickly("a 8\nc 2\n")
    assert rig.samples() == {
        "a instance=n1,job=j": [(1, 1.0), (2, 5.0), (3, 5.0), (4, 6.0), (5, "stale"), (6, 7.0), (7, 8.0)],
        "b instance=n1,job=j": [(1, 2.0), (2, 2.0), (3, "stale")],
        "c instance=n1,job=j": [(3, 2.0), (4, 2.0), (5, "stale"), (6, 2.0), (7, 2.0)],
    }


def test_a_quick_scrape_after_series_were_removed(store: Store) -> None:
    rig = Rig(store)
    rig.scrape("a 1\nb 1\n")
    store.delete_series([Matcher("__name__", MatchOp.EQUAL, "a")])
    assert not rig.scrape_quickly("a 2\nb 2\n")
    assert rig.scrape_quickly("a 3\nb 3\n")
    assert rig.samples()["a instance=n1,job=j"] == [(2, 2.0), (3, 3.0)]


def test_a_quick_scrape_does_not_wait_for_a_full_queue(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(store)
    rig.scrape("a 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(store, "try_submit", lambda tick: None)
        assert rig.ingester.ingest_values(Fetched(b"a 2\n", False), rig.tick(), 0.0) is None
    rig.scrape("a 3\n")
    assert rig.samples()["a instance=n1,job=j"] == [(1, 1.0), (3, 3.0)]


def test_a_target_whose_lines_always_change_is_not_compared_each_time(store: Store) -> None:
    rig = Rig(store)
    for number in range(5):
        rig.scrape(f'a{{n="{number}"}} 1\n')
    assert not rig.scrape_quickly('a{n="4"} 2\n'), "its last text was not kept"
    for _ in range(SCRAPES_AFTER_MISSES):
        rig.scrape_quickly('a{n="4"} 2\n')
    assert rig.scrape_quickly('a{n="4"} 3\n'), "after some scrapes it is tried again"


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "job", "exported_job", "instance"]), st.sampled_from(["", "1", "2"])
    ),
    st.booleans(),
)
def test_merge_labels(own: dict[str, str], honor: bool) -> None:
    target = {"job": "j", "instance": "i"}
    merged = merge_labels((("__name__", "m"), *own.items()), target, honor)
    if honor:
        assert all(merged.get(name, "") == value for name, value in own.items())
    else:
        assert all(merged[name] == value for name, value in target.items())
        lost = {value for name, value in own.items() if value} - set(merged.values())
        assert not lost, "a clashing value is kept under another name"


def test_a_timestamp_beyond_64_bits_drops_only_its_sample(store: Store) -> None:
    text = "a 1 12345678901234567890\nb 2\n# EOF\n"
    rig = Rig(store)
    rig.scrape(text, openmetrics=True)
    assert set(rig.samples()) == {"b instance=n1,job=j"}
    other = Rig(store, honor_timestamps=False)
    other.scrape(text, openmetrics=True)
    assert other.samples()["a instance=n1,job=j"] == [(1, 1.0)]


def test_errors_name_the_limit(store: Store) -> None:
    cases = {
        "scrape_max_samples": "a 1\n" * 11,
        "scrape_max_labels": 'a{b="1",c="2",d="3",e="4",f="5"} 1\n',
        "scrape_max_label_name_bytes": f'a{{{"n" * 40}="1"}} 1\n',
        "scrape_max_label_value_bytes": f'a{{b="{"v" * 60}"}} 1\n',
        "scrape_max_line_bytes": f"# {'x' * 1100}\n",
    }
    text_limits = TextLimits(line_bytes=1000)
    limits = JobLimits(samples=10, labels=6, label_name_length=30, label_value_length=50, text=text_limits)
    for name, text in cases.items():
        with pytest.raises(ScrapeError) as raised:
            Rig(store, limits=limits).scrape(text)
        assert raised.value.limit == name
    before = LIMITS_REACHED.counts()["scrape_max_metadata_bytes"]
    small = JobLimits(text=TextLimits(metadata_bytes=150))
    Rig(store, limits=small).scrape("# HELP a x\n# HELP b x\na 1\n")
    assert LIMITS_REACHED.counts()["scrape_max_metadata_bytes"] == before + 1


def test_a_label_value_of_31_mb_is_refused_with_little_memory(store: Store) -> None:
    body = b'a{x="' + b"v" * (31 << 20) + b'"} 1\n'
    rig = Rig(store)
    tracemalloc.start()
    try:
        with pytest.raises(ScrapeError, match="scrape_max_line_bytes"):
            rig.ingester.ingest(Fetched(body, False), NOW, time.monotonic())
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_long_label_value_is_parsed_without_backtracking(store: Store) -> None:
    """The memory for the longest allowed line is proportional to its length."""
    limits = JobLimits(label_value_length=1 << 20, text=TextLimits(label_value_bytes=1 << 20))
    value = '\\"' * 200_000
    tracemalloc.start()
    try:
        Rig(store, limits=limits).scrape(f'a{{x="{value}"}} 1\n')
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
        with pytest.raises(ScrapeError, match="a label without a value"):
            Rig(store, limits=limits).scrape(f'a{{x="{value}}} 1\n')
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("honor", "lines"), [(False, 1), (True, 0)])
def test_a_renamed_owner_label_is_logged_once_with_the_line_to_change(
    store: Store, caplog: pytest.LogCaptureFixture, honor: bool, lines: int
) -> None:
    labels = (("instance", "n1"), ("job", "j"), ("pod", "agent-x7"))
    target = ScrapeTarget(ScrapeJob("j", honor_labels=honor), "http://n1/metrics", labels, {}, 15.0, 10.0)
    ingester = TargetIngester(target, TargetAppender(store, target.name, dict(labels)))
    for at in (NOW - 2000, NOW - 1000):
        body = f'a{{pod="train-{at}"}} 1\nb{{pod="train"}} 1\n'.encode()
        ingester.ingest(Fetched(body, False), at, time.monotonic()).stored.result()
    logged = [record.getMessage() for record in caplog.records if "exported_pod" in record.getMessage()]
    assert len(logged) == lines
    assert all("set honor_labels: true" in line and "job j, n1" in line for line in logged)
