"""Coverage-guided fuzzing of a parser. A failure reports the input bytes.

A target is a module `tests/fuzz/target_NAME.py` with
    SEEDS: tuple[bytes, ...]       valid inputs to start from
    TOKENS: tuple[bytes, ...]      words of the format, inserted by mutations
    def run(data: bytes) -> None   raises only for a defect: catches the parser's documented errors
and a test module `tests/fuzz/test_NAME.py` calls `fuzz_briefly` in a plain test and `fuzz_long` in one marked
`slow`. `atheris` runs in a separate process, because libFuzzer ends its process. To fuzz manually:
    python -m tests.fuzz.harness tests.fuzz.target_promql -runs=1000000
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
COVERAGE_GUIDED_CASES = 1_000_000
RANDOM_CASES = 10_000
BRIEF_CASES = 300
MAX_INPUT_BYTES = 1024
"""More than the limits that the targets set. Inputs of 4 KiB take twice the CPU time per case."""
_MEMORY_MIB = 2048


def fuzz_briefly(target: str, cases: int = BRIEF_CASES) -> None:
    """Run the seeds and some reproducible mutations of them; for the ordinary suite."""
    _random(target, cases, derandomize=True)


def fuzz_long(target: str) -> None:
    """Run 10⁶ cases guided by coverage if atheris is installed (Linux on x86-64), else 10⁴ random ones."""
    if importlib.util.find_spec("atheris") is None:
        _random(target, RANDOM_CASES, derandomize=False)
    else:
        coverage_guided(target, COVERAGE_GUIDED_CASES)


def _random(target: str, cases: int, *, derandomize: bool) -> None:
    module = importlib.import_module(target)
    for seed in module.SEEDS:
        module.run(seed)

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=derandomize,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_inputs(module))
    def examples(data: bytes) -> None:
        module.run(data)

    examples()


def _inputs(module: Any) -> st.SearchStrategy[bytes]:
    """Combine pieces of valid inputs and words of the format: random bytes rarely pass a lexer."""
    seeds = st.sampled_from(module.SEEDS)
    piece = st.one_of(
        st.tuples(seeds, st.integers(0, 200), st.integers(0, 200)).map(lambda cut: cut[0][cut[1] : cut[2]]),
        seeds,
        st.sampled_from(module.TOKENS) if module.TOKENS else st.binary(max_size=4),
        st.binary(max_size=8),
    )
    return st.lists(piece, max_size=12).map(lambda pieces: b"".join(pieces)[:MAX_INPUT_BYTES])


def coverage_guided(target: str, cases: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.fuzz.harness", target, f"-runs={cases}"]
        done = subprocess.run(command, cwd=ROOT, env=_environment(folder), capture_output=True, text=True)
        crashes = [path.read_bytes() for path in sorted(Path(folder).glob("crash/*"))]
    report = "\n".join(done.stderr.splitlines()[-40:])
    assert done.returncode == 0, f"{target}: {crashes!r} {done.stdout[-4000:]}\n{report}"
    # libFuzzer also exits with 0 if it could not start.
    assert f"Done {cases} runs" in done.stderr, report


def _environment(folder: str) -> dict[str, str]:
    return {**os.environ, "FUZZ_FOLDER": folder, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}


def main(arguments: list[str]) -> None:
    """Entry point of the atheris process. Options are those of libFuzzer (-runs=, -max_total_time=, a
    corpus)."""
    import atheris  # installed on some platforms only

    target, options = arguments[0], arguments[1:]
    with atheris.instrument_imports(include=["gpuscope", target]):
        module = importlib.import_module(target)
    folder = Path(os.environ.get("FUZZ_FOLDER") or tempfile.mkdtemp(prefix="fuzz-"))
    corpus, crashes, words = folder / "corpus", folder / "crash", folder / "words"
    for made in (corpus, crashes):
        made.mkdir(exist_ok=True)
    for number, seed in enumerate(module.SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    words.write_text("".join(f'"{_escaped(token)}"\n' for token in module.TOKENS))
    atheris.Setup(
        [
            target,
            f"-max_len={MAX_INPUT_BYTES}",
            f"-rss_limit_mb={_MEMORY_MIB}",
            f"-artifact_prefix={crashes}/",
            f"-dict={words}",
            *options,
            str(corpus),
        ],
        module.run,
    )
    atheris.Fuzz()


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    main(sys.argv[1:])
