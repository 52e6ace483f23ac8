from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.history.scrape.config import ScrapeJob, TargetGroup
from gpuscope.history.scrape.discovery import Discovery, read_target_file, targets_from_argument


def addresses(discovery: Discovery[ScrapeJob]) -> list[str]:
    return [target for group in discovery.groups() for target in group.targets]


def write(path: Path, *targets: str) -> None:
    path.write_text(json.dumps([{"targets": list(targets), "labels": {"rack": "1"}}]))


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    discovery = Discovery(ScrapeJob("j", static=(TargetGroup(("s:1",)),), files=(str(tmp_path / "*.json"),)))
    assert addresses(discovery) == ["s:1"]
    write(tmp_path / "a.json", "a:1")
    assert addresses(discovery) == ["s:1", "a:1"]
    assert discovery.groups()[1].labels == {"rack": "1", "__meta_filepath": str(tmp_path / "a.json")}
    write(tmp_path / "a.json", "a:1", "a:2")
    write(tmp_path / "b.json", "b:1")
    assert addresses(discovery) == ["s:1", "a:1", "a:2", "b:1"]
    (tmp_path / "a.json").unlink()
    assert addresses(discovery) == ["s:1", "b:1"]


def test_a_half_written_file_keeps_its_targets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.json"
    write(path, "a:1")
    discovery = Discovery(ScrapeJob("j", files=(str(path),)))
    assert addresses(discovery) == ["a:1"]
    path.write_text('[{"targets": ["a:')
    assert addresses(discovery) == addresses(discovery) == ["a:1"]
    assert len(caplog.records) == 1, "once per episode"
    write(path, "a:9")
    assert addresses(discovery) == ["a:9"]


def test_yaml_files(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("- targets: [a:1, b:2]\n  labels: {x: 1}\n")
    (group,) = read_target_file(path)
    assert (group.targets, group.labels["x"]) == (("a:1", "b:2"), "1")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_file_is_targets_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    for suffix in (".json", ".yml"):
        path = tmp_path_factory.getbasetemp() / f"any{suffix}"
        path.write_bytes(content)
        try:
            read_target_file(path)
        except UsageError as error:
            said = str(error)
        else:
            said = str(path)
        assert said.startswith(str(path))


def test_the_argument_is_addresses_or_a_file(tmp_path: Path) -> None:
    groups, files = targets_from_argument("a:9400, b:9400,")
    assert (groups[0].targets, files) == (("a:9400", "b:9400"), ())
    plain = tmp_path / "nodes.txt"
    plain.write_text("a:1  # the first\n\nb:2\n")
    assert targets_from_argument(str(plain))[0][0].targets == ("a:1", "b:2")
    watched = tmp_path / "nodes.json"
    write(watched, "c:3")
    assert targets_from_argument(str(watched)) == ((), (str(watched),))


@pytest.mark.parametrize("wrong", ["", ",", "http://a:1/metrics", "a b", "nosuch.json", os.devnull + ".yml"])
def test_a_wrong_argument_is_an_error(wrong: str) -> None:
    with pytest.raises(UsageError, match="--targets"):
        targets_from_argument(wrong)


def test_a_long_address_list_is_not_a_file_name() -> None:
    addresses = tuple(f"node{number}:9400" for number in range(500))
    (group,), files = targets_from_argument(",".join(addresses))
    assert (group.targets, files) == (addresses, ())
