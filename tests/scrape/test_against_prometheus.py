"""The same configuration in a real Prometheus and in gpuscope gives the same targets, labels and series."""

from __future__ import annotations

import json
import random
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuscope.history.scrape.config import ScrapeJob, read_config
from gpuscope.history.scrape.fetch import Fetched, ScrapeError
from gpuscope.history.scrape.ingest import TargetIngester
from gpuscope.history.scrape.job_options import is_openmetrics
from gpuscope.history.scrape.target import DroppedTarget, ScrapeTarget, build_targets
from gpuscope.history.scrape.target_appender import TargetAppender
from gpuscope.history.store import Store
from gpuscope.model.series import Matcher, MatchOp
from gpuscope.serve.api.encode import number_text
from tests.engines import running_prometheus
from tests.exposition.corpus import openmetrics_corpus
from tests.exposition.test_formats import (
    OPENMETRICS_INVALID,
    OPENMETRICS_VALID,
    TEXT_INVALID,
    TEXT_VALID,
)
from tests.scrape.exporters import serving, text
from tests.waiting import wait_for

pytestmark = pytest.mark.engine("prometheus")

NAMES = ("__address__", "__meta_x", "__scheme__", "a", "b", "Case", "job", "instance", "__metrics_path__")
METRIC_NAMES = ("__name__", "a", "b", "job", "instance", "exported_job", "le")
REGEXES = (
    "(.*)", "(.+)", "(.*):(.*)", "a|b", "", "__meta_(.+)", "([a-z]+).*", "(?P<word>[A-Za-z]+)[0-9:.]*", ".*9.*",
    "m_(.*)", "[^;]*;(.*)", "line.break",
)  # fmt: skip
TEMPLATES = ("$1", "${1}x", "$2", "$$", "${word}", "plain", "", "$1$2", "a$", "${1", "$nosuch", "x-$1-y")
ACTIONS = (
    *["replace"] * 6, "keep", "drop", "keepequal", "dropequal", "hashmod", "labelmap", "labeldrop", "labelkeep",
    "lowercase", "uppercase",
)  # fmt: skip


def rule(pick: random.Random, names: tuple[str, ...]) -> dict[str, Any]:
    action = pick.choice(ACTIONS)
    made: dict[str, Any] = {"action": action}
    if action in ("labelmap", "labeldrop", "labelkeep"):
        made["regex"] = pick.choice(REGEXES)
        if action == "labelmap":
            # Never one name for several labels: which of them wins is left to chance in Prometheus.
            made["replacement"] = pick.choice(("$1", "${1}_x"))
            made["regex"] = pick.choice(("__meta_(.+)", "(.+)", "(a|b)", "m(.*)"))
        if action == "labelkeep":
            made["regex"] = "__.*|job|instance|" + pick.choice(REGEXES)
        return made
    made["source_labels"] = pick.sample(names, pick.randint(1, 2))
    if action in ("keepequal", "dropequal"):
        return made | {"target_label": pick.choice(names)}
    if action == "hashmod":
        return made | {"target_label": "shard", "modulus": pick.choice((1, 7, 1000, 2**40))}
    if action in ("lowercase", "uppercase"):
        return made | {"target_label": pick.choice(("a", "new"))}
    made["regex"] = pick.choice(REGEXES)
    if action == "keep":
        made["regex"] += "|.*"[: pick.choice((0, 3))]
    if action == "replace":
        made["target_label"] = pick.choice(("a", "b", "new", "${1}_t", "__param_p", "instance"))
        made["replacement"] = pick.choice(TEMPLATES)
        if pick.random() < 0.3:
            made["separator"] = pick.choice(("", "-", ":"))
    return made


def ask(url: str, path: str, **parameters: str) -> Any:
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with urllib.request.urlopen(f"{url}/api/v1/{path}{query}", timeout=30) as answer:
        return json.load(answer)["data"]


def scraped_targets(url: str, count: int) -> list[dict[str, Any]]:
    """Prometheus' targets, once each was scraped."""

    def look() -> list[dict[str, Any]]:
        targets: list[dict[str, Any]] = ask(url, "targets", state="active")["activeTargets"]
        return targets if len(targets) == count and all(one["health"] != "unknown" for one in targets) else []

    return wait_for(look, "every target scraped")


def test_intervals_are_written_the_same() -> None:
    intervals = ("15s", "60s", "90s", "1500ms", "24h", "36h", "168h", "10d", "365d", "1y")
    relabelled = [{"target_label": "__scrape_interval__", "replacement": "7200s"}]
    document = {
        "scrape_configs": [
            {
                "job_name": f"j{number}",
                "scrape_interval": interval,
                "scrape_timeout": "1s",
                "static_configs": [{"targets": ["localhost:1"]}],
                "relabel_configs": relabelled if number == 0 else [],
            }
            for number, interval in enumerate(("1m", *intervals))
        ]
    }
    with running_prometheus(yaml.safe_dump(document)) as url:

        def look() -> Any:
            targets = ask(url, "targets", state="active")["activeTargets"]
            return targets if len(targets) == len(document["scrape_configs"]) else None

        targets = wait_for(look, "every job looked at")
    theirs = {
        one["scrapePool"]: (one["discoveredLabels"]["__scrape_interval__"], one["scrapeInterval"])
        for one in targets
    }
    ours = {
        job.name: (target.discovered["__scrape_interval__"], target.interval_text)
        for job in read_config(document, "f", Path()).jobs
        for target in build_targets(job, job.static)
        if isinstance(target, ScrapeTarget)
    }
    assert ours == theirs


def test_relabelled_targets_are_the_same() -> None:
    pick = random.Random(4)
    jobs = [
        {
            "job_name": f"j{number}",
            "params": {"p": ["1"]} if pick.random() < 0.3 else {},
            "relabel_configs": [rule(pick, NAMES) for _ in range(pick.randint(1, 4))],
            "static_configs": [
                {
                    "targets": ["host1:9400", "UPPER.example:80"],
                    "labels": {"a": "x1", "b": "", "Case": "straßE İΣ"},
                },
                {"targets": ["[::1]:9100"], "labels": {"__meta_x": "y", "a": "line\nbreak", "b": "a"}},
            ],
        }
        for number in range(120)
    ]
    document = {"global": {"scrape_interval": "1h"}, "scrape_configs": jobs}
    with running_prometheus(yaml.safe_dump(document)) as url:

        def look() -> Any:
            theirs = ask(url, "targets", state="any")
            # A job that was not looked at yet has a count of 0.
            found = {one["scrapePool"] for one in theirs["activeTargets"]}
            found |= {name for name, count in theirs["droppedTargetCounts"].items() if count}
            return theirs if len(found) == len(jobs) else None

        theirs = wait_for(look, "every job looked at")
    ours = [
        (job, one) for job in read_config(document, "f", Path()).jobs for one in build_targets(job, job.static)
    ]
    mine = sorted(
        (job.name, one.url, tuple(sorted(one.discovered.items())), one.labels)
        for job, one in ours
        if isinstance(one, ScrapeTarget)
    )
    active = sorted(
        (one["scrapePool"], one["scrapeUrl"], pairs(one["discoveredLabels"]), pairs(one["labels"]))
        for one in theirs["activeTargets"]
    )
    assert not (wrong := difference(mine, active)), "\n".join(map(str, wrong))
    dropped = [job.name for job, one in ours if isinstance(one, DroppedTarget)]
    counts = {name: count for name, count in theirs["droppedTargetCounts"].items() if count}
    assert {name: dropped.count(name) for name in dropped} == counts
    assert len(active) > 100, "most targets must survive, or nothing is compared"
    assert dropped, "and some must not"


def difference(ours: Iterable[Any], theirs: Iterable[Any]) -> list[Any]:
    """A few items that only one side has; a whole diff would be unreadable."""
    mine, other = set(ours), set(theirs)
    return [("ours", one) for one in sorted(mine - other)[:3]] + [
        ("theirs", one) for one in sorted(other - mine)[:3]
    ]


def pairs(table: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(table.items()))


EXPOSITION = """\
# HELP m_1 One
# TYPE m_1 counter
m_1{a="x1",b="a"} 1
m_1{a="x2",b="",job="own",instance=""} 2
m_1{a="x2",job="own",exported_job="too"} 3
m_2{le="0.5",Case="MiX"} 4.5
m_2{a="esc\\"aped\\\\ \\n"} NaN
m_3{} 1e3
m_3 7
m_4{b="twice"} 1
m_4{b="twice"} 2
m_5{a="line\\nbreak"} +Inf
"""


def scraped_by_prometheus(document: dict[str, Any]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The health by job, and the newest sample of every series."""
    with running_prometheus(yaml.safe_dump(document)) as url:
        targets = scraped_targets(url, len(document["scrape_configs"]))
        vector = ask(url, "query", query='{__name__=~".+"}')["result"]
    return {one["scrapePool"]: one["health"] for one in targets}, vector


def scraped_by_us(
    document: dict[str, Any], folder: Path, answer: Callable[[str], Fetched]
) -> tuple[dict[str, str], dict[tuple[tuple[str, str], ...], str]]:
    """The health by job, and the newest value of every series; `answer` gives the body for a job's name."""
    health: dict[str, str] = {}
    with Store(folder / "data") as store:
        for job in read_config(document, "f", Path()).jobs:
            (target,) = build_targets(job, job.static)
            assert isinstance(target, ScrapeTarget)
            health[job.name] = scrape(store, job, target, answer(job.name))
        return health, stored(store)


def test_scraped_series_are_the_same(tmp_path: Path) -> None:
    pick = random.Random(7)
    with serving({"/metrics": text(EXPOSITION)}) as address:
        jobs = [
            {
                "job_name": f"j{number}",
                "honor_labels": pick.random() < 0.5,
                "metric_relabel_configs": [rule(pick, METRIC_NAMES) for _ in range(pick.randint(0, 3))],
                "static_configs": [{"targets": [address], "labels": {"exported_instance": "z", "rack": "7"}}],
            }
            for number in range(60)
        ]
        jobs[0]["metric_relabel_configs"] = [{"action": "labeldrop", "regex": "__name__"}]
        document = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        theirs, vector = scraped_by_prometheus(document)
        mine, ours = scraped_by_us(document, tmp_path, lambda job: Fetched(EXPOSITION.encode(), False))
    assert mine == theirs
    expected = {
        pairs(one["metric"]): one["value"][1]
        for one in vector
        if not one["metric"].get("__name__", "").startswith("scrape_")
    }
    ours = {
        labels: value for labels, value in ours.items() if not dict(labels)["__name__"].startswith("scrape_")
    }
    assert not (wrong := difference(ours.items(), expected.items())), "\n".join(map(str, wrong))
    assert len(expected) > 300
    assert theirs["j0"] == "down", "a series without a name fails the scrape"


def scrape(store: Store, job: ScrapeJob, target: ScrapeTarget, body: Fetched) -> str:
    ingester = TargetIngester(target, TargetAppender(store, target.name, dict(target.labels)))
    at = time.time_ns() // 1_000_000
    try:
        ingester.ingest(body, at, time.monotonic()).stored.result()
    except ScrapeError:
        ingester.appender.fail(at, 0.0).result()
        return "down"
    return "up"


def stored(store: Store) -> dict[tuple[tuple[str, str], ...], str]:
    """The newest value of every series, formatted as in Prometheus."""
    found = store.select([Matcher("__name__", MatchOp.REGEX, ".+")], 0, 2**53)
    return {one.labels: number_text(float(one.values[-1])) for one in found}


OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
NUMBERS = [
    "1", "1.0", "1e1", "0", "-0", "-1", "+Inf", "inf", "nan", "0.50", "1000000", "123456", "1e-5", ".25", "x",
    "1e400", "1.7976931348623157e308", "0.1", "100000", "999999.5",
]  # fmt: skip
NORMALISED = "".join(
    f"# TYPE {kind} {kind}\n" + "".join(f'{kind}{{{label}="{value}"}} 1\n' for value in NUMBERS)
    for kind in ("histogram", "summary", "gauge")
    for label in ("le", "quantile")
)


def formats() -> dict[str, tuple[bytes, bool]]:
    cases = {
        f"text {name}": (text.encode("utf-8", "surrogateescape"), False)
        for name, text in (TEXT_VALID | TEXT_INVALID).items()
    }
    for name, body in (OPENMETRICS_VALID | OPENMETRICS_INVALID).items():
        cases[f"openmetrics {name}"] = (f"{body}\n# EOF\n".lstrip("\n").encode(), True)
    cases["normalised text"] = (NORMALISED.encode(), False)
    cases["normalised openmetrics"] = (f"{NORMALISED}# EOF\n".encode(), True)
    return cases


def compare(cases: dict[str, tuple[bytes, bool]], folder: Path) -> tuple[int, int]:
    """Scrapes every text with both; returns how many both accepted and both refused."""
    pages = {
        f"/{number}": text(body, OPENMETRICS if openmetrics else "text/plain; version=0.0.4")
        for number, (body, openmetrics) in enumerate(cases.values())
    }
    with serving(pages) as address:
        jobs = [
            {
                "job_name": name,
                "metrics_path": f"/{number}",
                "honor_timestamps": False,
                "static_configs": [{"targets": [address]}],
            }
            for number, name in enumerate(cases)
        ]
        document = {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs}
        theirs, vector = scraped_by_prometheus(document)
        mine, ours = scraped_by_us(document, folder, lambda job: Fetched(*cases[job]))
    assert not (wrong := difference(mine.items(), theirs.items())), "\n".join(map(str, wrong))
    expected = {pairs(one["metric"]) for one in vector}
    # Prometheus 3 keeps the blanks before a name as a part of it.
    expected = {(("__name__", labels[0][1].strip()), *labels[1:]) for labels in expected}
    assert not (wrong := difference(reports_off(ours), reports_off(expected))), "\n".join(map(str, wrong))
    healths = [*theirs.values()]
    return healths.count("up"), healths.count("down")


def reports_off(series: Iterable[tuple[tuple[str, str], ...]]) -> set[tuple[tuple[str, str], ...]]:
    return {one for one in series if not dict(one)["__name__"].startswith(("scrape_", "up"))}


def test_the_same_texts_give_the_same_series(tmp_path: Path) -> None:
    taken, refused = compare(formats(), tmp_path)
    assert taken == len(TEXT_VALID) + len(OPENMETRICS_VALID) + 2
    assert refused == len(TEXT_INVALID) + len(OPENMETRICS_INVALID)


@pytest.mark.slow
def test_openmetrics_cases_are_accepted_or_refused_alike(tmp_path: Path) -> None:
    cases = {name: (body, True) for name, (body, _) in openmetrics_corpus().items()}
    taken, refused = compare(cases, tmp_path)
    assert taken >= 44
    assert refused >= 88


CONTENT_TYPES = {
    "none": "", "html": "text/html", "json": "application/json", "plain": "text/plain", "case": "TEXT/Plain",
    "charset": "text/plain; charset=utf-8", "version": 'text/plain; version="0.0.4"; escaping=values',
    "semicolon": "text/plain;", "no value": "text/plain; charset", "twice": "text/plain; a=1; A=2",
    "comma": "text/plain, text/html", "no type": "; a=b", "open quote": 'text/plain; a="b', "slash": "text/",
    "blank": " text/plain ", "openmetrics": "application/openmetrics-text",
    "unknown openmetrics": "application/openmetrics-text; version=9",
}  # fmt: skip


def test_the_same_content_types_are_accepted(tmp_path: Path) -> None:
    """`# EOF` makes the text valid in both formats."""
    pages = {f"/{number}": text("a 1\n# EOF\n", value) for number, value in enumerate(CONTENT_TYPES.values())}
    with serving(pages) as address:
        jobs = [
            {
                "job_name": f"{name} {fallback}",
                "metrics_path": f"/{number}",
                "static_configs": [{"targets": [address]}],
                **({"fallback_scrape_protocol": fallback} if fallback else {}),
            }
            for number, name in enumerate(CONTENT_TYPES)
            for fallback in ("", "PrometheusText0.0.4", "OpenMetricsText1.0.0")
        ]
        document = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        with running_prometheus(yaml.safe_dump(document)) as url:
            targets = scraped_targets(url, len(jobs))
    theirs = {one["scrapePool"]: one["health"] == "up" for one in targets}
    ours = {}
    for job in read_config(document, "f", Path()).jobs:
        header = CONTENT_TYPES[job.name.rpartition(" ")[0]]
        try:
            is_openmetrics(header, job.fallback_protocol)
            ours[job.name] = True
        except ValueError:
            ours[job.name] = False
    assert ours == theirs
    assert {True, False} == set(theirs.values())
