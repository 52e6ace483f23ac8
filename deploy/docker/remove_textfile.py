"""Removes $TEXTFILE when this process is ended, and when the file is older than $MAX_AGE_SECONDS (0: any age).

It runs beside a scheduled collector, whose own pods are gone between two runs: when the chart is removed, or
the collector does not come back, a node exporter would export the last sessions for ever. Once ended, it stays
for $LINGER_SECONDS: a run that began before may still write, because Kubernetes ends the pods of a removed
CronJob after the CronJob. Only the standard library, without site packages: it waits nearly all the time.
"""

import os
import signal
import sys
import time
from pathlib import Path

LOOK_SECONDS = 30.0
SIGNALS = {signal.SIGTERM, signal.SIGINT}


def remove(path: Path) -> None:
    for file in (path, path.with_name(f".{path.name}.lock")):
        file.unlink(missing_ok=True)


def is_old(path: Path, max_age_seconds: float) -> bool:
    try:
        return 0 < max_age_seconds < time.time() - path.stat().st_mtime
    except OSError:
        return False


def main() -> int:
    # Blocked and not handled: the first process of a container ignores signals without a handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    path = Path(os.environ["TEXTFILE"])
    max_age_seconds = float(os.environ.get("MAX_AGE_SECONDS", "0"))
    sys.stderr.write(f"{path} is removed when this process ends\n")
    is_ended = False
    while not is_ended:
        if is_old(path, max_age_seconds):
            sys.stderr.write(f"{path} is old, nothing writes it any more: removed\n")
            remove(path)
        is_ended = signal.sigtimedwait(SIGNALS, LOOK_SECONDS) is not None
    stop_at = time.monotonic() + float(os.environ.get("LINGER_SECONDS", "0"))
    while True:
        remove(path)
        if time.monotonic() >= stop_at:
            return 0
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
