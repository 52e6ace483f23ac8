"""What a running server says about its alerts: files that the last reload refused, and channels that fail.

Input: a function that gets a path of the server as JSON; output: one result for each thing that is wrong, none
if all is well or if the server has no such route.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from gpuscope.base.blocking_http import BlockingHttp, HttpAddress
from gpuscope.base.time_text import to_rfc3339
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.serve.doctor.listener_checks import ANSWER_SECONDS, SERVER

# `doctor --server URL`: whether the server has the data that the dashboards and the page show.
#
# Runs after the server has answered a query. Finds: nothing scraped, targets that are down, owner labels
# renamed by a clash, missing rules. The function `run_query` takes PromQL and returns the values of an
# instant query.

"""None about this machine."""
MAX_NAMED: Final = 3

Series = tuple[Mapping[str, str], float]
RunQuery = Callable[[str], Sequence[Series]]


def check_stored_data(run_query: RunQuery) -> Iterator[CheckResult]:
    yield from _gpus(run_query)
    yield from _targets(run_query)
    yield from _label_clash(run_query)
    yield from _rules(run_query)


def _gpus(run_query: RunQuery) -> Iterator[CheckResult]:
    gpus = _number(run_query("count(gpuscope_gpu_info)"))
    if gpus:
        yield CheckResult(Verdict.GOOD, f"the server has data of {gpus} GPUs")
        return
    others = {
        "dcgm-exporter": _number(run_query("count(DCGM_FI_DEV_GPU_TEMP)")),
        "nvidia_gpu_exporter": _number(run_query("count(nvidia_smi_index)")),
    }
    found = [name for name, series in others.items() if series]
    if found:
        fix = "export them too: gpuscope agent --families native,dcgm, or GPUSCOPE_FAMILIES=native,dcgm"
        what = f"the server has metrics of {' and '.join(found)}, but no gpuscope_*: our dashboards are empty"
        yield CheckResult(Verdict.BAD, what, fix)
    else:
        fix = "scrape the agents: gpuscope render prometheus --nodes A,B, or gpuscope server --targets A:9400"
        yield CheckResult(Verdict.BAD, "the server has no GPU metrics: pages and dashboards are empty", fix)


def _targets(run_query: RunQuery) -> Iterator[CheckResult]:
    down = run_query("up == 0")
    if down:
        named = ", ".join(_target_name(labels) for labels, _ in down[:MAX_NAMED])
        more = f" and {len(down) - MAX_NAMED} more" if len(down) > MAX_NAMED else ""
        fix = (
            "on the server: gpuscope doctor --server http://INSTANCE:9400; docs/ports.md has the ports to open"
        )
        yield CheckResult(Verdict.BAD, f"the server cannot scrape {named}{more}", fix)


def _target_name(labels: Mapping[str, str]) -> str:
    return f"{labels.get('job', '')} {labels.get('instance', '')}"


def _label_clash(run_query: RunQuery) -> Iterator[CheckResult]:
    """The label `pod` of a series is the target's own where Prometheus renamed ours."""
    renamed = _number(
        run_query('count({__name__=~"gpuscope_.+|gpu_process_.+|DCGM_FI_.+",exported_namespace!=""})')
    )
    if renamed:
        fix = "honor_labels: true in the scrape job; in a ServiceMonitor or PodMonitor: honorLabels: true"
        what = (
            f"{renamed} series have exported_namespace: their pods are those of the exporter, "
            "and panels by pod or namespace are wrong"
        )
        yield CheckResult(Verdict.BAD, what, fix)


def _rules(run_query: RunQuery) -> Iterator[CheckResult]:
    if not run_query('ALERTS{alertname="Watchdog"}'):
        fix = "gpuscope render rules --out DIR, and rule_files: [DIR/rules/*.rules.yml] in prometheus.yml"
        yield CheckResult(Verdict.NOTE, "the shipped alert rules are not loaded: no alerts on dashboards", fix)


def _number(series: Sequence[Series]) -> int:
    return int(series[0][1]) if series else 0


MAX_BODY_BYTES: Final = 1 << 20
MAX_SHOWN_CHARACTERS: Final = 500
NOTIFY_PATH, RELOAD_PATH = "/api/notify", "/api/reload"
_FILES: Final = {
    "rules": "configuration and rule files",
    "alerting": "alerting file",
    "idle_policy": "idle policy",
}

GetJson = Callable[[str], object]


def check_alerts(get_json: GetJson) -> Iterator[CheckResult]:
    for name, status in _table(get_json(RELOAD_PATH)).items():
        if reason := str(_table(status).get("error", ""))[:MAX_SHOWN_CHARACTERS]:
            files = _FILES.get(name, name)
            what = f"the running server uses older {files}; the current ones were refused: {reason}"
            yield CheckResult(Verdict.BAD, what, "correct that line, then send SIGHUP to the server")
    channels = _table(get_json(NOTIFY_PATH)).get("channels", ())
    for channel in channels if isinstance(channels, list) else ():
        if _table(channel).get("up") is False:
            since = to_rfc3339(channel["failing_since"], "seconds")
            reason = str(channel["last_error"])[:MAX_SHOWN_CHARACTERS]
            what = f"channel {channel['channel']} has failed since {since}: {reason}"
            yield CheckResult(Verdict.BAD, what, "gpuscope notify test tries a channel")


def running_server(context: DoctorContext) -> Iterator[CheckResult]:
    """Checks the server on the loopback address, unless it requires a login there."""
    host, port = context.settings.listen or SERVER
    address = HttpAddress(host or "127.0.0.1", port)

    def get_json(path: str) -> object:
        try:
            with BlockingHttp(address, timeout_seconds=ANSWER_SECONDS, max_body_bytes=MAX_BODY_BYTES) as http:
                response = http.request("GET", path)
            return json.loads(response.body) if response.status == HTTPStatus.OK else None
        except (OSError, ValueError, RecursionError):
            return None  # no server, TLS, or another program

    return check_alerts(get_json)


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


CHECKS = (running_server,)
