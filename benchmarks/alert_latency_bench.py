"""How long a reading takes to become a notification: `gpuscope up --demo --scenario xid79@+…` with a webhook.

`python -m benchmarks alert_latency` measures from the XID and from the first stored sample that has it to the
POST that has its alert. The rule has no `for`, so the budget is the evaluation interval and one second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from benchmarks.measure import table
from tests.engines import running
from tests.notify.timeline import Sink, running_sink
from tests.ports import free_port
from tests.waiting import wait_for

ALERT = "XidHardware"
MAX_SECONDS_OVER_INTERVAL = 1.0


def alert_request(sink: Sink) -> tuple[float, dict[str, Any]] | None:
    """When the first POST with the alert arrived, and its labels."""
    for arrived_at, _, body in list(sink.requests):
        document = json.loads(body)
        if document["groupLabels"].get("alertname") == ALERT:
            return arrived_at, document["alerts"][0]["labels"]
    return None


def event_and_reading(url: str, uuid: str) -> tuple[float, float]:
    """The XID's own time, and that of the first stored sample which has it, in seconds since the epoch."""
    query = f'gpuscope_gpu_xid_last_timestamp_seconds{{uuid="{uuid}", xid="79"}}[5m]'
    with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=30) as answer:
        [series] = json.load(answer)["data"]["result"]
    event = max(float(value) for _, value in series["values"])
    return event, min(float(at) for at, value in series["values"] if float(value) == event)


def measure(interval_seconds: int, begins_after: str) -> list[str]:
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    with running_sink() as sink, tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "gpuscope", "up", "--demo", "--scenario", f"xid79@+{begins_after}",
            "--listen", address, "--data", folder, "--evaluation-interval", f"{interval_seconds}s",
            "--notify", f"{sink.url}/hook",
        ]  # fmt: skip
        with running(command, f"{url}/-/healthy"):
            arrived_at, labels = wait_for(lambda: alert_request(sink), "the alert's POST")
            event, reading = event_and_reading(url, labels["uuid"])
    latency = arrived_at - reading
    verdict = "yes" if latency - interval_seconds <= MAX_SECONDS_OVER_INTERVAL else "no"
    load = f"{os.getloadavg()[0]:.1f}"
    return [str(interval_seconds), f"{arrived_at - event:.2f}", f"{latency:.2f}", verdict, load]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intervals", type=int, nargs="+", default=[15, 5])
    parser.add_argument("--begins-after", default="40s", help="the demo's history is written before")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    rows = [measure(one, args.begins_after) for one in args.intervals for _ in range(args.runs)]
    headings = [
        "evaluation interval, s",
        "XID to POST, s",
        "stored reading to POST, s",
        "within interval + 1 s",
        "load",
    ]
    print(table(headings, rows), flush=True)


if __name__ == "__main__":
    main()
