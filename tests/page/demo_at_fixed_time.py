"""`gpuscope up --demo` whose clock starts at a fixed time, for recorded answers.

`python -m tests.page.demo_at_fixed_time SECONDS up --demo …`: the same seed and the same start give the same
history. The clock runs on from the start, since alerts become firing only as time passes.
"""

from __future__ import annotations

import sys
import time


def main() -> int:
    start, *arguments = sys.argv[1:]
    system_time, system_time_ns = time.time, time.time_ns
    offset = float(start) - system_time()
    offset_ns = round(offset * 1e9)
    time.time = lambda: system_time() + offset
    time.time_ns = lambda: system_time_ns() + offset_ns
    # Default arguments bind time.time when a module is imported, so the program is imported after the change.
    from gpuscope.cli import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
