"""Runs every benchmark of this folder, or the named ones: `python -m benchmarks [agent store …]`.

A benchmark is a module with a `main()`. Each runs in its own process, so that they do not share memory
or caches. At the end come the budgets that they reported. Exits with status 1 if one failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.budgets import BUDGETS_FILE, budget_table, read_reported
from benchmarks.measure import machine

FOLDER = Path(__file__).parent


def find_benchmarks() -> dict[str, str]:
    """Return module names by short name: `agent_bench.py` is `agent`."""
    modules = (path for path in sorted(FOLDER.glob("*.py")) if path.stem != "__main__")
    return {
        path.stem.removesuffix("_bench"): f"benchmarks.{path.stem}"
        for path in modules
        if "\ndef main(" in path.read_text("utf-8")
    }


def main(names: Sequence[str]) -> int:
    known = find_benchmarks()
    for name in names:
        if name not in known:
            print(f"no benchmark {name!r}; available: {', '.join(known)}", file=sys.stderr)
            return 2
    print(machine(), flush=True)
    failed = []
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as folder:
        reported = Path(folder) / "budgets"
        environment = {**os.environ, BUDGETS_FILE: str(reported)}
        for name in names or known:
            print(f"\n## {name}\n", flush=True)
            if subprocess.run([sys.executable, "-m", known[name]], env=environment, check=False).returncode:
                failed.append(name)
        budgets = read_reported(reported)
    if budgets:
        print(f"\n## Budgets\n\n{budget_table(budgets)}", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
