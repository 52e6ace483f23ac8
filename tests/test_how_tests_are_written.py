"""Tests use only public names, do not sleep, and try few examples in make test-fast.

The tables below have the number of violations left in each file; a number may only go down.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import LONGEST_FIRST, NOT_FAST, SHARED

HERE = Path(__file__).parent

# Names with an underscore that belong to the interface of another project.
PUBLIC_WITH_UNDERSCORE = {
    "os._exit",
    "nvml._nvmlGetFunctionPointer",  # other clients of the binding use it too
    "client._session",  # prometheus-api-client leaves its connections to the caller, and has no close
}

SLEEPS_WITH_A_REASON = {
    "waiting.py": (2, "the one helper that waits for a condition"),
    "fake_dcgmi/dcgmi.py": (3, "a program of its own: it prints at its interval, and hangs when told to"),
    "fake_smi/replay.py": (2, "a program of its own: it hangs when told to"),
    "integration/test_failures.py": (1, "slow: ten minutes of an agent in real time, looked at every second"),
    "integration_api/test_limits.py": (1, "a look whether the storage is left alone"),
    "owners/slow_disk.py": (1, "a disk that takes its time"),
    "owners/test_process_work.py": (1, "processes need time to do what they do"),
    "wiring/test_waiting_processes.py": (1, "processes need time to wait in"),
    "slurm_lab/cluster.py": (1, "waits for the daemons of a real Slurm"),
    "labs/docker_lab.py": (1, "slow: waits for a real Docker engine"),
    "labs/systemd_lab.py": (1, "slow: waits for a real systemd"),
    "render/test_labs.py": (1, "slow: waits for containers to answer"),
    "notify/timeline.py": (1, "records the real Alertmanager's timeline, in real time"),
    "rules/test_against_prometheus.py": (1, "waits for the moments at which the real Prometheus evaluates"),
    "server/http/test_connection.py": (2, "work that keeps the loop busy; a look whether nothing more is made"),
    "server/http/test_hostile.py": (4, "clients and handlers slower than the server's limits, in real time"),
    "server/http/test_limits.py": (2, "clients slower than the server's limits, in real time"),
}


# Every offence contains one of these: only files with a match are parsed.
MAY_OFFEND = re.compile(
    r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]|\bimport\b.*\W_[a-zA-Z]|^\s+_\w+,$|[a-z]etattr\(|delattr\(|\.object\("
    r"|sleep\(|Event\(\)\.wait",
    re.MULTILINE,
)


NAMED_TUPLE_METHODS = ("_replace", "_asdict", "_fields", "_make")


def private_uses(tree: ast.Module) -> Iterator[str]:
    """`thing._name` of anything but self and cls, and `from module import _name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = ast.unparse(node.value)
            if (
                owner not in ("self", "cls")
                and node.attr not in NAMED_TUPLE_METHODS
                and f"{owner}.{node.attr}" not in PUBLIC_WITH_UNDERSCORE
            ):
                yield f"{node.lineno}: {owner}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.lineno}: import {one.name}" for one in node.names if _is_private(one.name))
        elif isinstance(node, ast.Call) and _last_name(node.func) in (
            "setattr",
            "getattr",
            "delattr",
            "object",
        ):
            words = [
                one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            yield from (f"{node.lineno}: {word!r}" for word in words if _is_private(word.rpartition(".")[2]))


def _last_name(function: ast.expr) -> str:
    """`sleep` of `time.sleep`."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def sleeps(tree: ast.Module) -> Iterator[str]:
    """Calls of any `sleep` but `asyncio.sleep(0)`, which gives others their turn; waits for a new event."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _last_name(node.func) not in ("sleep", "wait"):
            continue
        text = ast.unparse(node)
        if "Event().wait(" in text or ("sleep(" in text and text != "asyncio.sleep(0)"):
            yield f"{node.lineno}: {text}"


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    texts = {path.relative_to(HERE).as_posix(): path.read_text("utf-8") for path in sorted(HERE.rglob("*.py"))}
    return {file: ast.parse(text) for file, text in texts.items() if MAY_OFFEND.search(text)}


def found_in(trees: dict[str, ast.Module], rule: Callable[[ast.Module], Iterator[str]]) -> dict[str, list[str]]:
    return {file: uses for file, tree in trees.items() if (uses := list(rule(tree)))}


def surplus(found: dict[str, list[str]], allowed: dict[str, int]) -> list[str]:
    """Uses that the table does not allow, and rows of the table that allow more than the file has."""
    counts = Counter({file: len(uses) for file, uses in found.items()})
    wrong = [
        f"{file}:{use}" for file, uses in found.items() if len(uses) > allowed.get(file, 0) for use in uses
    ]
    return wrong + [f"{file}: only {counts[file]} left" for file in allowed if counts[file] < allowed[file]]


def test_tests_use_only_what_is_public(trees: dict[str, ast.Module]) -> None:
    assert surplus(found_in(trees, private_uses), {}) == []


def test_tests_do_not_sleep(trees: dict[str, ast.Module]) -> None:
    allowed = {file: count for file, (count, _) in SLEEPS_WITH_A_REASON.items()}
    assert surplus(found_in(trees, sleeps), allowed) == []


def test_make_test_fast_limits_the_examples_of_every_property() -> None:
    """A number in a test wins over the profile; `tests.examples.examples` follows it."""
    literal = re.compile(r"max_examples=\d")
    texts = {path.relative_to(HERE).as_posix(): path.read_text("utf-8") for path in HERE.rglob("*.py")}
    assert [file for file, text in texts.items() if literal.search(text)] == ["conftest.py"]


@pytest.mark.parametrize(
    "text",
    [
        "store._writer.close()",
        "self.store._writer",
        "from gpuscope.history.store import _Row",
        "monkeypatch.setattr(store, '_limit', 1)",
        "monkeypatch.setattr('gpuscope.history.store._limit', 1)",
        "getattr(store, '_limit')",
    ],
)
def test_a_private_name_is_found(text: str) -> None:
    assert MAY_OFFEND.search(text)
    assert len(list(private_uses(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text", ["self._own", "cls._own", "store.__class__", "os._exit(0)", "setattr(a, 'b', 1)"]
)
def test_what_is_public_or_its_own_is_not(text: str) -> None:
    assert list(private_uses(ast.parse(text))) == []


@pytest.mark.parametrize(
    "text", ["time.sleep(0.1)", "sleep(1)", "asyncio.sleep(pause)", "threading.Event().wait(0.1)"]
)
def test_a_sleep_is_found(text: str) -> None:
    assert MAY_OFFEND.search(text)
    assert len(list(sleeps(ast.parse(text)))) == 1


def test_a_turn_and_a_wait_for_something_are_no_sleep() -> None:
    assert list(sleeps(ast.parse("asyncio.sleep(0)\nstop.wait(10)"))) == []


def test_a_table_may_only_shrink() -> None:
    assert surplus({"a.py": ["1: x", "2: y"]}, {"a.py": 1}) == ["a.py:1: x", "a.py:2: y"]
    assert surplus({"a.py": ["1: x"]}, {"a.py": 2}) == ["a.py: only 1 left"]
    assert surplus({"a.py": ["1: x"]}, {"a.py": 1}) == []


@pytest.mark.parametrize("table", [NOT_FAST, LONGEST_FIRST, SHARED], ids=["fast", "order", "shared"])
def test_every_path_that_decides_when_a_test_runs_exists(table: tuple[str, ...]) -> None:
    assert [name for name in table if not (HERE / name).exists()] == []
    assert len(set(table)) == len(table)


def test_a_file_has_its_own_turn_before_its_folder() -> None:
    too_late = [
        name
        for turn, name in enumerate(LONGEST_FIRST)
        if any(name.startswith(f"{one}/") for one in LONGEST_FIRST[:turn])
    ]
    assert too_late == []
