"""When a Go client is skipped, when its build is a failure, and when it is built again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import go_client

FAKE_GO = """#!/bin/sh
echo "$@" >> {log}
case $1 in
  env) echo go1.0 ;;
  list) {on_list} ;;
  build) {on_build} ;;
esac
"""
REFUSED = "echo 'main.go:3:2: x.example/y: reading https://x.example/y.zip: 403 Forbidden' >&2; exit 1"
UNTIDY = "echo 'main.go:3:2: missing go.sum entry for module providing package x' >&2; exit 1"
BUILDS = "shift $(($# - 2)); echo built > $1"


class Go:
    """A `go` that does as told, and the cache folder it builds for."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "bin").mkdir()
        patch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(go_client, "HERE", folder)
        (folder / "some").mkdir()
        (folder / "some" / "main.go").write_text("package main")

    def does(self, on_list: str = ":", on_build: str = BUILDS) -> None:
        program = self.folder / "bin" / "go"
        program.write_text(FAKE_GO.format(log=self.log, on_list=on_list, on_build=on_build))
        program.chmod(0o755)

    def find(self) -> Path | str:
        go_client.find_client.cache_clear()
        return go_client.find_client("some")

    def builds(self) -> int:
        return sum(line.startswith("build") for line in self.log.read_text().splitlines())


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    return Go(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    go_client.find_client.cache_clear()


def test_without_go_there_is_a_reason(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(go.folder / "bin"))
    assert go.find() == "Go is not installed"


def test_modules_that_cannot_be_fetched_are_a_reason(go: Go) -> None:
    go.does(on_list=REFUSED)
    found = go.find()
    assert isinstance(found, str)
    assert "403 Forbidden" in found


@pytest.mark.parametrize("trouble", [{"on_list": UNTIDY}, {"on_build": "echo 'syntax error' >&2; exit 1"}])
def test_what_is_wrong_with_the_program_is_a_failure(go: Go, trouble: dict[str, str]) -> None:
    go.does(**trouble)
    with pytest.raises(AssertionError, match=r"missing go.sum|syntax error"):
        go.find()


def test_a_program_is_built_once_for_its_sources(go: Go) -> None:
    go.does()
    first, again = go.find(), go.find()
    assert isinstance(first, Path)
    assert first == again
    assert first.read_text() == "built\n"
    assert go.builds() == 1
    (go.folder / "some" / "main.go").write_text("package main // new")
    assert go.find() != first
    assert go.builds() == 2
