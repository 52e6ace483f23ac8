"""A real Prometheus and we scrape the same target by the same file: what the API tells of it is the same."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines import engine, running
from tests.integration_api.asked import LIMITS, SELECTORS, V1
from tests.integration_api.raw import Asked, get, send
from tests.integration_api.servers import ask, differences, running_gpuscope, wait_for
from tests.integration_api.test_api_differential import problem
from tests.ports import free_port
from tests.scrape.exporters import serving, text

PAGE = """\
# HELP things_total How many "things" \\\\ there were.\\nIn two lines.
# TYPE things_total counter
things_total{kind="a",path="C:\\\\dir",text="say \\"hi\\"\\n"} 12
things_total{kind="b"} 1e+06
# TYPE level gauge
level 0.1
# HELP waited_seconds A histogram.
# TYPE waited_seconds histogram
waited_seconds_bucket{le="0.5"} 1
waited_seconds_bucket{le="+Inf"} 2
waited_seconds_sum 3.5
waited_seconds_count 2
plain NaN
# HELP only_help Nothing but words.
only_help -Inf
# HELP "dotted.name" With a name of another alphabet.
# TYPE "dotted.name" gauge
{"dotted.name","a.label"="é"} 1
"""
OTHER_PAGE = """\
# HELP level Said in other words elsewhere.
# TYPE level gauge
level 7
"""
CONFIG = """\
global: {{scrape_interval: 1s, external_labels: {{site: here}}}}
scrape_configs:
  - job_name: b
    static_configs: [{{targets: ["{target}"], labels: {{team: x}}}}]
  - job_name: a
    metrics_path: /other
    params: {{q: ["1"]}}
    static_configs: [{{targets: ["{target}"]}}]
  - job_name: dropping
    relabel_configs: [{{source_labels: [__address__], regex: ".*:1", action: drop}}]
    static_configs: [{{targets: ["{target}", "127.0.0.1:1", "127.0.0.2:1"]}}]
    metrics_path: /missing
"""
EVERYTHING = '{__name__=~".+"}'


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[str, str]]:
    """Ours and theirs, once each has scraped everything."""
    with (
        serving({"/metrics": text(PAGE, PAGE_KIND), "/other": text(OTHER_PAGE)}) as target,
        tempfile.TemporaryDirectory() as folder,
    ):
        config = Path(folder) / "prometheus.yml"
        config.write_text(CONFIG.format(target=target))
        with (
            running_gpuscope(Path(folder) / "ours", "--config", config) as ours,
            _prometheus_without_administration(Path(folder), config) as theirs,
        ):
            wait_for("scrapes", lambda: _scraped(ours) and _scraped(theirs))
            yield ours, theirs


PAGE_KIND = "text/plain; version=1.0.0; escaping=allow-utf-8"


@contextmanager
def _prometheus_without_administration(folder: Path, config: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        engine("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'theirs'}",
        f"--web.listen-address={address}", "--log.level=warn",
    ]  # fmt: skip
    with running(command, f"http://{address}/-/ready"):
        yield f"http://{address}"


def _scraped(url: str) -> bool:
    active = ask(url, f"{V1}/targets").body["data"]["activeTargets"]
    up = ask(url, f"{V1}/query", {"query": "count(level) == 2"}).body["data"]["result"]
    return bool(up) and len(active) == 3 and all(one["health"] != "unknown" for one in active)


def both(pair: tuple[str, str], path: str, parameters: Any = ()) -> tuple[Any, Any]:
    answers = [send(url, get(path, parameters)) for url in pair]
    assert [answer.status for answer in answers] == [200, 200], answers
    return answers[0].json()["data"], answers[1].json()["data"]


@pytest.mark.parametrize(
    "parameters",
    [{}, {"state": "active"}, {"state": "dropped"}, {"scrapePool": "a"}, {"scrapePool": "dropping"},
     {"scrapePool": "no"}],
    ids=str,
)  # fmt: skip
def test_targets(pair: tuple[str, str], parameters: dict[str, str]) -> None:
    found = both(pair, f"{V1}/targets", parameters)
    for told in found:
        for one in told["activeTargets"]:
            assert re.fullmatch(
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", one.pop("lastScrape")
            )
            assert one.pop("lastScrapeDuration") > 0
            # This machine's name takes the place of its own address there; we do not guess what others call us.
            del one["globalUrl"]
            if one["lastError"]:
                one["lastError"] = "…"
    assert not list(differences(*found))


@pytest.mark.parametrize("path", ["scrape_pools"])
def test_what_must_be_equal(pair: tuple[str, str], path: str) -> None:
    assert not list(differences(*both(pair, f"{V1}/{path}")))


@pytest.mark.parametrize(
    "parameters",
    [
        {}, {"metric": "level"}, {"metric": "things_total"}, {"metric": "things"}, {"metric": "waited_seconds"},
        {"metric": "plain"}, {"metric": "only_help"}, {"metric": "dotted.name"}, {"metric": "nothing"},
        {"metric": "waited_seconds_bucket"}, {"limit": -1}, {"limit": 0}, {"limit": 100},
        {"limit_per_metric": 0},
        {"limit_per_metric": -1}, {"limit_per_metric": 5},
    ],
    ids=str,
)  # fmt: skip
def test_metadata(pair: tuple[str, str], parameters: dict[str, Any]) -> None:
    ours, theirs = both(pair, f"{V1}/metadata", parameters)
    assert not list(differences(_sorted_metadata(ours), _sorted_metadata(theirs)))


def _sorted_metadata(told: dict[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    return {name: sorted(entries, key=lambda one: one["help"]) for name, entries in told.items()}


@pytest.mark.parametrize("limit", ["1", "2", "3"])
def test_metadata_with_a_limit_is_as_long(pair: tuple[str, str], limit: str) -> None:
    """Which metrics it has is chance there; the first by name here."""
    for name in ("limit", "limit_per_metric"):
        ours, theirs = both(pair, f"{V1}/metadata", {name: limit})
        assert len(ours) == len(theirs)
        assert sorted(map(len, ours.values())) == sorted(map(len, theirs.values())) or name == "limit"


@pytest.mark.parametrize(
    "parameters",
    [
        {}, {"metric": "level"}, {"match_target": '{job="b"}'},
        {"match_target": '{job="b"}', "metric": "level"},
        {"match_target": '{job=~".*"}'}, {"match_target": "{}"}, {"match_target": '{job="no"}'}, {"limit": 0},
        {"match_target": '{team!="x"}'}, {"metric": "dotted.name"}, {"limit": -5}, {"match_target": "level"},
    ],
    ids=str,
)  # fmt: skip
def test_metadata_of_targets(pair: tuple[str, str], parameters: dict[str, Any]) -> None:
    def in_order(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(told, key=lambda one: (one.get("metric", ""), sorted(one["target"].items())))

    ours, theirs = both(pair, f"{V1}/targets/metadata", parameters)
    assert not list(differences(in_order(ours), in_order(theirs)))


def test_what_is_refused_is_refused_alike(pair: tuple[str, str]) -> None:
    paths, limits = ("metadata", "targets/metadata"), [one for one in LIMITS if not one.strip("+-0").isdigit()]
    asked = [get(f"{V1}/{path}", {"limit": text}) for path in paths for text in limits]
    asked += [get(f"{V1}/targets/metadata", {"match_target": text}) for text in SELECTORS]
    for path in ("delete_series", "clean_tombstones", "snapshot"):
        asked += [Asked(way, f"{V1}/admin/tsdb/{path}") for way in ("GET", "POST", "PUT", "DELETE")]
    asked += [Asked("DELETE", f"{V1}/series?match[]=level")]
    answers = [(one, send(pair[0], one), send(pair[1], one)) for one in asked]
    # What both take is another test's: in which order Prometheus tells it is chance.
    refused = [answer for answer in answers if answer[1].status != 200 or answer[2].status != 200]
    assert len(refused) > len(asked) / 2
    found = [f"{one}: {what}" for one, ours, theirs in refused if (what := problem(one, ours, theirs))]
    assert not found, "\n".join(found[:10])


@pytest.mark.parametrize(
    "accept",
    [
        "", "text/plain;version=0.0.4", "text/plain;version=0.0.4;escaping=allow-utf-8",
        "text/plain; escaping=values",
        "text/plain; escaping=dots", "text/plain;escaping=underscores", "text/plain;escaping=nonsense",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    ],
)  # fmt: skip
def test_federation(pair: tuple[str, str], accept: str) -> None:
    match = '{__name__=~"things_total|level|waited_seconds_.*|plain|only_help|dotted.name"}'
    answers = [
        send(url, get("/federate", {"match[]": match}, **({"accept": accept} if accept else {})))
        for url in pair
    ]
    assert answers[0].kind.replace(" ", "") == answers[1].kind.replace(" ", "")
    ours, theirs = (_without_times(one.content.decode()) for one in answers)
    assert ours == theirs


def _without_times(page: str) -> list[str]:
    lines = []
    for line in page.splitlines():
        series, _, rest = line.rpartition("} ")
        if series:
            value, at = rest.split()
            assert at.isdigit()
            line = f"{series}}} {float(value)!r}"
        lines.append(line)
    return lines


def test_the_configuration_is_told(pair: tuple[str, str]) -> None:
    ours, theirs = both(pair, f"{V1}/status/config")
    assert ours.keys() == theirs.keys()
    for job in ("a", "b", "dropping"):
        assert f"job_name: {job}" in ours["yaml"]
