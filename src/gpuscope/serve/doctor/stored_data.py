"""`doctor --server URL`: whether the server has the data that the dashboards and the page show.

Runs after the server has answered a query. Finds: nothing scraped, targets that are down, owner labels renamed
by a clash, missing rules. The function `run_query` takes PromQL and returns the values of an instant query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from gpuscope.model.doctor_check import Check, CheckResult, Verdict

CHECKS: tuple[Check, ...] = ()
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
