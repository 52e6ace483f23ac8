"""Removes $TEXTFILE when this process is ended, and when nothing writes the file any more.

It runs beside a writer of text files. A scheduled one has no pod between two runs, and any can be killed: when
the chart is removed, or the writer does not come back, a node exporter would export its last numbers for ever.
The file may be five times as old as $WRITE_INTERVAL, at least 600 s; of any age if that is empty. Once ended,
this process stays for $LINGER_SECONDS: a run that began before may still write, because Kubernetes ends the
pods of a removed CronJob after the CronJob. Only the standard library, without site packages: it waits nearly
all the time.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

LOOK_SECONDS = 30.0
MIN_AGE_SECONDS = 600.0
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIGNALS = {signal.SIGTERM, signal.SIGINT}


def remove(path: Path) -> None:
    """Not while a process writes it: that one removes the file itself, or is another release's."""
    lock_path = path.with_name(f".{path.name}.lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        path.unlink(missing_ok=True)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        path.unlink(missing_ok=True)
        lock_path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def max_age_seconds(interval: str) -> float:
    if not interval:
        return float("inf")
    unit = interval.lstrip("0123456789")
    return max(MIN_AGE_SECONDS, 5 * int(interval.removesuffix(unit)) * SECONDS[unit])


def is_old(path: Path, max_age: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime > max_age
    except OSError:
        return False


def main() -> int:
    # Blocked and not handled: the first process of a container ignores signals without a handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    path = Path(os.environ["TEXTFILE"])
    max_age = max_age_seconds(os.environ.get("WRITE_INTERVAL", ""))
    sys.stderr.write(f"{path} is removed when this process ends\n")
    is_ended = False
    while not is_ended:
        if is_old(path, max_age):
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
