"""The Grafana dashboards as files: tracked, typed, in four languages, without overlaps and dead links."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard as SdkDashboard

from gpuscope.cli import main
from gpuscope.serve.render.grafana import GrafanaPlan, dashboard_files, grafana_files, provisioning_files
from gpuscope.serve.render.grafana.dashboard_json import to_dashboard_json
from gpuscope.serve.render.grafana.dashboard_table import DASHBOARDS, GRAFANA_PANELS, PAGE_PANELS, load_panels
from gpuscope.serve.render.grafana.dashboard_texts import LANGUAGES, load_texts

ROOT = Path(__file__).parents[2]
NAMES = {"fleet", "node", "gpu", "sessions", "slurm", "kubernetes", "health", "usage"}
CURRENT_TYPES = {"row", "timeseries", "status-history", "state-timeline", "stat", "bargauge", "table"}
# Fields of Grafana's Prometheus plugin and its variables that the SDK's generic types do not have.
NOT_IN_THE_SDK = {
    *(
        f".annotations.list[].{name}"
        for name in ("step", "titleFormat", "textFormat", "tagKeys", "useValueForTime")
    ),
    ".templating.list[].definition",
}
OTHERS = LANGUAGES[1:]


def documents(language: str = "en", page_url: str = "http://page:9470") -> dict[str, Any]:
    files = dashboard_files(GrafanaPlan(language=language, page_url=page_url))
    return {Path(file.path).stem.removeprefix("gpuscope-"): json.loads(file.content) for file in files}


def panels_of(document: Any) -> list[Any]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def test_the_tracked_files_are_up_to_date() -> None:
    """`make docs` writes them."""
    folder = ROOT / "deploy/grafana"
    written = {file.path: file.content for file in grafana_files(GrafanaPlan())}
    tracked = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert tracked == written


def test_there_is_a_dashboard_for_each_subject() -> None:
    assert set(documents()) == NAMES


def test_every_panel_of_the_page_is_in_a_dashboard() -> None:
    shown = {name for dashboard in DASHBOARDS for row in dashboard.rows for name in row.panels}
    assert shown == set(load_panels())
    of_page = {row["id"] for row in json.loads(PAGE_PANELS.read_text())["panels"]}
    assert of_page <= shown


def lost_fields(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Where the two documents differ, of what we wrote."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name, value in ours.items():
            if name in theirs:
                yield from lost_fields(value, theirs[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            yield from lost_fields(one, other, f"{where}[]")
    elif ours != theirs:
        yield where


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_sdk_reads_a_dashboard_and_loses_nothing(name: str) -> None:
    """The types of Grafana's foundation SDK: a field that they do not have, Grafana would ignore."""
    register_default_plugins()
    document = documents()[name]
    read_back = json.loads(JSONEncoder().encode(SdkDashboard.from_json(document)))
    assert set(lost_fields(document, read_back)) <= NOT_IN_THE_SDK


def test_a_field_that_the_sdk_does_not_have_would_be_found() -> None:
    register_default_plugins()
    document = documents()["gpu"]
    panels_of(document)[1]["fieldConfig"]["defaults"]["custom"]["lineWdith"] = 2
    read_back = json.loads(JSONEncoder().encode(SdkDashboard.from_json(document)))
    assert ".panels[].fieldConfig.defaults.custom.lineWdith" in set(lost_fields(document, read_back))


def test_panels_have_current_types_and_do_not_overlap() -> None:
    for name, document in documents().items():
        taken: set[tuple[int, int]] = set()
        for panel in document["panels"]:
            assert panel["type"] in CURRENT_TYPES
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, f"{name}: {panel['title']} is on top of another panel"
            assert place["x"] + place["w"] <= 24
            taken |= cells
        numbers = [panel["id"] for panel in document["panels"]]
        assert len(numbers) == len(set(numbers))


def texts_of(document: Any) -> set[str]:
    found = {document["title"], document["description"]}
    found |= {panel["title"] for panel in document["panels"]}
    found |= {panel["description"] for panel in panels_of(document)}
    found |= {variable["label"] for variable in document["templating"]["list"] if "label" in variable}
    found |= {annotation["name"] for annotation in document["annotations"]["list"]}
    return found | {link["title"] for link in document["links"]}


@pytest.mark.parametrize("language", OTHERS)
def test_titles_are_translated(language: str) -> None:
    english, other = documents("en"), documents(language)
    for name in NAMES:
        same = texts_of(english[name]) & texts_of(other[name])
        # Names that every language writes alike.
        assert same <= {"GPU", "GPUs", "XIDs", "CPU", "Slurm", "slurmctld", "gpuscope: GPU", "Kubernetes"} | {
            "gpuscope: Slurm", "gpuscope: Kubernetes", "Namespace",
        }, same  # fmt: skip
        assert [panel["id"] for panel in panels_of(english[name])] == [
            panel["id"] for panel in panels_of(other[name])
        ]


@pytest.mark.parametrize("language", OTHERS)
def test_no_translation_is_left_over(language: str) -> None:
    texts = load_texts(language)
    used: set[str] = set()

    class Recording(dict[str, str]):
        def __getitem__(self, key: str) -> str:
            used.add(key)
            return super().__getitem__(key)

    recording = replace(texts, words=Recording(texts.words))
    for dashboard in DASHBOARDS:
        to_dashboard_json(dashboard, recording, "http://page:9470")
    assert used == set(texts.words)
    assert set(texts.dashboards) == NAMES
    assert set(texts.panels) == set(load_panels())
    assert all(text.strip() for panel in texts.panels.values() for text in panel.values())


def test_the_grafana_only_panels_repeat_no_id_of_the_page() -> None:
    page, own = (
        {row["id"] for row in json.loads(path.read_text())["panels"]} for path in (PAGE_PANELS, GRAFANA_PANELS)
    )
    assert not page & own


def test_links_lead_to_dashboards_and_views_that_exist() -> None:
    table = (ROOT / "web/src/app.tsx").read_text().partition("VIEWS")[2].partition("\n};")[0]
    known_views = set(re.findall(r"^  (\w+):", table, re.MULTILINE))
    for document in documents().values():
        text = json.dumps(document)
        assert set(re.findall(r"/d/gpuscope-(\w+)", text)) <= NAMES
        [to_page] = [link["url"] for link in document["links"] if "page_url" in link["url"]]
        view = re.match(r"\$\{page_url\}/#/(\w+)", to_page)
        assert view is not None
        assert view[1] in known_views
        assert "from=${__from:date:seconds}" in to_page  # the page's times are in seconds


def test_without_a_page_there_is_no_link_to_it() -> None:
    assert "page_url" not in json.dumps(documents(page_url=""))
    assert "http://page:9470" in json.dumps(documents())


def test_every_variable_of_a_query_is_defined() -> None:
    built_in = {"__rate_interval", "__range", "1"}
    for name, document in documents().items():
        defined = {variable["name"] for variable in document["templating"]["list"]}
        expressions = [target["expr"] for panel in panels_of(document) for target in panel["targets"]]
        expressions += [annotation["expr"] for annotation in document["annotations"]["list"]]
        used = {found for expr in expressions for found in re.findall(r"\$(\w+)", expr)}
        assert used <= defined | built_in, name


def test_every_dashboard_shows_xids_and_alerts_as_annotations() -> None:
    for document in documents().values():
        xids, alerts = document["annotations"]["list"]
        assert "gpuscope_gpu_xid_last_timestamp_seconds" in xids["expr"]
        assert xids["useValueForTime"]  # at the time of the XID, not of the scrape
        assert alerts["expr"].startswith("ALERTS{")


def test_the_command_writes_dashboards_and_provisioning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["render", "grafana", "--language", "ja", "--page-url", "https://gpus.example.org/", "--out"]
    assert main([*argv, str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(NAMES) + 2
    provider = yaml.safe_load((tmp_path / "provisioning/dashboards/gpuscope.yml").read_text())["providers"][0]
    folder = Path(provider["options"]["path"])
    assert len(list(folder.glob("*.json"))) == len(NAMES)
    fleet = json.loads((folder / "gpuscope-fleet.json").read_text())
    assert fleet["title"] == "gpuscope: 全体"
    assert {"type": "constant", "name": "page_url", "query": "https://gpus.example.org", "hide": 2} in fleet[
        "templating"
    ]["list"]


def test_a_wrong_url_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "grafana", "--page-url", "gpus", "--out", str(tmp_path)]) == 2
    assert "--page-url: 'gpus' is not a URL" in capsys.readouterr().err


def test_the_data_source_has_the_scrape_interval() -> None:
    file = provisioning_files(GrafanaPlan(scrape_interval="30s"))[0]
    source = yaml.safe_load(file.content)["datasources"][0]
    assert source["jsonData"]["timeInterval"] == "30s"
    assert source["type"] == "prometheus"
