"""Runs Prometheus' own promqltest files: every evaluation of the stable language over floats.

The files come from Prometheus' Go module in the Go module cache, with SLOW=1 also from the Go module proxy; if
the module is not available, the tests are skipped. `EXCLUDED_FILES` and `_experimental` exclude what is not
stable. An evaluation that reads native histograms, which are not stored, is run too, but may fail. The number
of passing evaluations is compared with `PASSING`: fewer are a regression, more require a new number.
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

from gpuscope.history.promql import Engine
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
    "functions": 299,
    "histograms": 83,
    "literals": 25,
    "operators": 144,
    "range_queries": 15,
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

# These are stable inside durations; start() and end() also after an @.
_EXPERIMENTAL_SCALARS = re.compile(r"\b(?:step|range|start|end|min_of|max_of)\(")
_DURATIONS = re.compile(r"\[.*\]|@ (?:start|end)\(\)|\boffset .*", re.IGNORECASE)
_NAMELESS_SELECTOR = re.compile(r"(?<!\w)\{")


@functools.cache
def corpus() -> Path | str:
    """Return the folder with the files, or why it is not available."""
    if shutil.which("go") is None:
        return "go is not installed"
    command = ["go", "mod", "download", "-json", MODULE]
    # The ordinary suite uses no network.
    environment = os.environ if os.environ.get("SLOW") == "1" else {**os.environ, "GOPROXY": "off"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, env=environment, cwd=tempfile.gettempdir()
        )
        answer = json.loads(done.stdout or "{}")
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return f"{' '.join(command)}: {error}"
    return Path(answer["Dir"]) / FOLDER if "Dir" in answer else answer.get("Error", done.stderr)


def files() -> list[Path]:
    found = corpus()
    if isinstance(found, str):
        pytest.skip(f"{MODULE} is not available: {found}")
    return sorted(found.glob("*.test"))


def evaluate_file(path: Path) -> tuple[Counter[str], list[str]]:
    """Count the evaluations that passed, failed, or were excluded by reason; return the failures too."""
    counts: Counter[str] = Counter()
    problems: list[str] = []
    storage, histograms = MemoryStorage(), set[str]()
    for block in blocks(path):
        if block[0][1].startswith("clear"):
            storage, histograms = MemoryStorage(), set()
        elif block[0][1].startswith("load"):
            histograms |= _load(block, storage)
        elif _experimental(block):
            counts["experimental"] += 1
        else:
            try:
                (command,) = parse_lines(block)
                assert isinstance(command, Evaluation)
                check(Engine(storage), command)
                counts["passed"] += 1
            except (AssertionError, UnreadableTestError) as problem:
                if _reads_histograms(block, histograms):
                    counts["native histograms"] += 1
                    continue
                counts["failed"] += 1
                problems.append(f"{path.name} {problem}")
    return counts, problems


Block = list[tuple[int, str]]


def blocks(path: Path) -> Iterator[Block]:
    """Yield the numbered lines of each command."""
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
    """Load the floats; return the names of the series that have native histograms."""
    floats = [(number, line) for number, line in block if "{{" not in line]
    first = floats[0][1].replace("load_with_nhcb", "load")
    (command,) = parse_lines([(floats[0][0], first), *floats[1:]])
    assert isinstance(command, Load)
    load_series(storage, command)
    names = {_name(line) for _, line in block[1:] if "{{" in line}
    if block[0][1].startswith("load_with_nhcb"):
        # Prometheus also creates a native histogram from the buckets, under the name without the suffix.
        names |= {
            name.removesuffix("_bucket") for _, line in block[1:] if (name := _name(line)).endswith("_bucket")
        }
    return names


def _name(line: str) -> str:
    found = re.match(r"[\w:.]+", line.strip())
    return found.group() if found else "{"


def _experimental(block: Block) -> bool:
    expr = block[0][1]
    return bool(_EXPERIMENTAL.search(expr) or _EXPERIMENTAL_SCALARS.search(_DURATIONS.sub("", expr)))


def _reads_histograms(block: Block, histograms: set[str]) -> bool:
    """Whether the expression may select a native histogram or the expected result contains one."""
    text = "\n".join(line for _, line in block)
    if "{{" in text or histograms & set(re.findall(r"[A-Za-z_:][\w:.]*", block[0][1])):
        return True
    # A selector without a name also selects histograms; the expected infos say that they were ignored.
    nameless = _NAMELESS_SELECTOR.search(block[0][1]) and "info" in text
    return bool(histograms and (nameless or "{__name__=~" in text))


def test_every_evaluation_of_the_stable_language_over_floats() -> None:
    passed, problems, excluded = {}, [], Counter[str]()
    for path in files():
        if path.stem in EXCLUDED_FILES:
            continue
        counts, found = evaluate_file(path)
        passed[path.stem] = counts.pop("passed", 0)
        counts.pop("failed", None)
        problems += found
        excluded += counts
    print(f"{sum(passed.values())} pass, {len(problems)} fail, excluded: {dict(excluded)}")
    assert not problems, f"{len(problems)} fail:\n" + "\n".join(problems[:200])
    assert passed == PASSING


def test_excluded_files_exist() -> None:
    """An exclusion without effect is a mistake."""
    assert EXCLUDED_FILES.keys() <= {path.stem for path in files()}
