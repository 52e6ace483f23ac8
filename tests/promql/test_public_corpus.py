"""Prometheus' own promqltest files, from its Go module: every evaluation of the stable language over floats.

The module comes from the Go module cache, with SLOW=1 also from the Go module proxy; where it cannot be had,
the tests are skipped by name. `EXCLUDED_FILES` and `_excluded` say what is left out and why. How many
evaluations pass is compared with `PASSING`: fewer are a regression, more want the number raised.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.promql import Engine
from tests.promql.memory import MemoryStorage
from tests.promql.promqltest import Evaluation, Load, UnreadableTestError, check, load_series, parse_lines

MODULE = "github.com/prometheus/prometheus@v0.314.0"
FOLDER = "promql/promqltest/testdata"

EXCLUDED_FILES = {
    "extended_vectors": "anchored and smoothed: experimental",
    "fill-modifier": "fill(): experimental",
    "info": "info(): experimental",
    "limit": "limitk and limit_ratio: experimental",
    "name_label_dropping": "delayed name removal: experimental",
    "native_histograms": "native histograms are not stored",
    "start_timestamps": "start timestamps: experimental",
    "type_and_unit": "type and unit labels: experimental",
}
PASSING = {
    "aggregators": 123,
    "at_modifier": 70,
    "collision": 2,
    "duration_expression": 59,
    "functions": 257,
    "histograms": 78,
    "literals": 25,
    "operators": 141,
    "range_queries": 11,
    "selectors": 31,
    "staleness": 17,
    "subquery": 32,
    "trig_functions": 19,
}
_EXPERIMENTAL = re.compile(
    r"\b(?:limitk|limit_ratio|info|mad_over_time|double_exponential_smoothing|sort_by_label(?:_desc)?|"
    r"ts_of_\w+_over_time|histogram_quantiles|start_timestamp)\s*(?:by\s*\(.*?\)\s*)?\(|\bfill(?:_left|_right)?\s*\(|"
    r"\b(?:anchored|smoothed)\b"
)

# These are stable inside durations, and start() and end() after an @.
_EXPERIMENTAL_SCALARS = re.compile(r"\b(?:step|range|start|end|min_of|max_of)\(")
_DURATIONS = re.compile(r"\[.*\]|@ (?:start|end)\(\)|\boffset .*", re.IGNORECASE)
_ANY_NAME = re.compile(r"(?<!\w)\{")


@functools.cache
def corpus() -> Path | str:
    """The folder with the files, or why there is none."""
    if shutil.which("go") is None:
        return "go is not installed"
    command = ["go", "mod", "download", "-json", MODULE]
    # The ordinary suite uses no network.
    environment = os.environ if os.environ.get("SLOW") == "1" else {**os.environ, "GOPROXY": "off"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, env=environment, cwd=tempfile.gettempdir()
        )
        told = json.loads(done.stdout or "{}")
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return f"{' '.join(command)}: {error}"
    return Path(told["Dir"]) / FOLDER if "Dir" in told else told.get("Error", done.stderr)


def files() -> list[Path]:
    found = corpus()
    if isinstance(found, str):
        pytest.skip(f"{MODULE} cannot be had: {found}")
    return sorted(found.glob("*.test"))


def evaluate_file(path: Path) -> tuple[Counter[str], list[str]]:
    """How many evaluations passed, failed, and were excluded for each reason; and what failed how."""
    counts: Counter[str] = Counter()
    problems: list[str] = []
    storage, histograms = MemoryStorage(), set[str]()
    for block in blocks(path):
        if block[0][1].startswith("clear"):
            storage, histograms = MemoryStorage(), set()
        elif block[0][1].startswith("load"):
            histograms |= _load(block, storage)
        elif (reason := _excluded(block, histograms)) is not None:
            counts[reason] += 1
        else:
            try:
                (command,) = parse_lines(block)
                assert isinstance(command, Evaluation)
                check(Engine(storage), command)
                counts["passed"] += 1
            except (AssertionError, UnreadableTestError) as problem:
                counts["failed"] += 1
                problems.append(f"{path.name} {problem}")
    return counts, problems


Block = list[tuple[int, str]]


def blocks(path: Path) -> Iterator[Block]:
    """The numbered lines of one command after the other."""
    block: Block = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0] not in " \t" and block:
            yield block
            block = []
        block.append((number, line))
    if block:
        yield block


def _load(block: Block, storage: MemoryStorage) -> set[str]:
    """Loads the floats; gives the names of the series that also or only have native histograms."""
    floats = [(number, line) for number, line in block if "{{" not in line]
    first = floats[0][1].replace("load_with_nhcb", "load")
    (command,) = parse_lines([(floats[0][0], first), *floats[1:]])
    assert isinstance(command, Load)
    load_series(storage, command)
    names = {_name(line) for _, line in block[1:] if "{{" in line}
    if block[0][1].startswith("load_with_nhcb"):
        # A native histogram is made of the buckets, under the name without the suffix.
        names |= {_name(line).removesuffix("_bucket") for _, line in block[1:]}
    return names


def _name(line: str) -> str:
    found = re.match(r"[\w:.]+", line.strip())
    return found.group() if found else "{"


def _excluded(block: Block, histograms: set[str]) -> str | None:
    text = "\n".join(line for _, line in block)
    words = set(re.findall(r"[A-Za-z_:][\w:.]*", block[0][1]))
    if "{{" in text or words & histograms or (histograms and _ANY_NAME.search(block[0][1]) and "info" in text):
        return "native histograms"
    if histograms and "{__name__=~" in text:
        return "native histograms"
    if _EXPERIMENTAL.search(block[0][1]) or _EXPERIMENTAL_SCALARS.search(_DURATIONS.sub("", block[0][1])):
        return "experimental"
    if "expect range vector" in text:
        return "a bare range: the answer has no expectation in our reader"
    return None


def test_every_evaluation_of_the_stable_language_over_floats() -> None:
    passed, problems, left_out = {}, [], Counter[str]()
    for path in files():
        if path.stem in EXCLUDED_FILES:
            continue
        counts, found = evaluate_file(path)
        passed[path.stem] = counts.pop("passed", 0)
        counts.pop("failed", None)
        problems += found
        left_out += counts
    print(f"{sum(passed.values())} pass, {len(problems)} fail, left out: {dict(left_out)}")
    assert not problems, f"{len(problems)} fail:\n" + "\n".join(problems[:200])
    assert passed == PASSING


def test_excluded_files_are_there() -> None:
    """An exclusion that excludes nothing is a mistake."""
    assert EXCLUDED_FILES.keys() <= {path.stem for path in files()}
