"""What a finding says: its text keys, arguments and evidence, from the labels and the value of its condition
and from the facts around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.base.go_quote import quote
from gpuscope.judge.checks.check import Check, Subject
from gpuscope.judge.checks.facts import NOTHING_MISSING, GpuFacts, Missing, NodeFacts
from gpuscope.judge.checks.finding import Argument, Condition, FindingOwner
from gpuscope.judge.checks.finding_texts import STEP_KEYS, join_indices
from gpuscope.judge.checks.thresholds import GONE_SHOWN_SECONDS, HOST_MEMORY_RATIO, SOURCE_SLOW_SECONDS
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.vendor import ErrorCatalogue, catalogues


@dataclass(frozen=True, slots=True)
class Detail:
    """What is particular to one finding of a kind; empty keys mean those of the kind itself."""

    args: Mapping[str, Argument] = field(default_factory=dict)
    why_key: str = ""
    next_key: str = ""
    next: str = ""
    """English text that is more exact than the one of `next_key`."""
    short: str = ""
    """The reason in a few words, for the state of the GPU."""


NO_DETAIL: Final = Detail()


@dataclass(frozen=True, slots=True)
class Surroundings:
    node: NodeFacts | None = None
    gpu: GpuFacts | None = None
    missing: Missing = NOTHING_MISSING
    others: Sequence[Mapping[str, str]] = ()
    """Labels of the owner's other GPUs, where the check names them."""

    def gpu_number(self, metric: str, label: str = "") -> Maybe[float]:
        return ABSENT if self.gpu is None else self.gpu.number(metric, label)

    def node_number(self, metric: str) -> Maybe[float]:
        return ABSENT if self.node is None else self.node.number(metric)


Describe = Callable[[Condition, Surroundings], Detail]


def _gone(condition: Condition, around: Surroundings) -> Detail:
    gone = around.missing.nodes.get(condition.subject.instance)
    if gone is None:
        return Detail(why_key="node_down.silent")
    if not gone.answered:
        return Detail({"error": gone.why or "–"}, "node_down.never", "node_down.never")
    return Detail({"error": gone.why}) if gone.why else Detail(why_key="node_down.silent")


def _target(condition: Condition, around: Surroundings) -> Detail:
    instance = condition.subject.instance
    errors = (target.gone.why for target in around.missing.targets if target.instance == instance)
    return Detail({"error": next(filter(None, errors), "–")})


def _error_detail(errors: ErrorCatalogue, code: str, why_key: str = "") -> Detail:
    row = errors.explain(code)
    shown = int(code) if code.isdecimal() else code
    return Detail(
        {errors.key: shown}, why_key, f"{errors.key}.{row.action}", row.next_step, f"{errors.word} {code}"
    )


def _error(errors: ErrorCatalogue) -> Describe:
    def describe_error(condition: Condition, around: Surroundings) -> Detail:
        code = condition.labels.get(errors.key, "")
        return _error_detail(errors, code) if errors.is_code(code) else NO_DETAIL

    return describe_error


def _lost(condition: Condition, around: Surroundings) -> Detail:
    """Names the newest error that makes the GPU suspect."""
    for errors in catalogues():
        ages = {} if around.gpu is None else around.gpu.by_label.get(errors.age_metric, {})
        known = [(age, code) for code, age in ages.items() if age < GONE_SHOWN_SECONDS and errors.is_code(code)]
        suspect = [(age, len(code), code) for age, code in known if errors.explain(code).blames_gpu]
        if suspect:
            return _error_detail(errors, min(suspect)[2], f"gpu_lost.{errors.key}")
    return NO_DETAIL


def _throttle(condition: Condition, around: Surroundings) -> Detail:
    reason = condition.labels.get("reason", "")
    return Detail({"reason": reason}, next_key=f"throttle.{reason}", short=reason)


def _pcie(condition: Condition, around: Surroundings) -> Detail:
    lanes, most = whole(condition.value), whole(around.gpu_number("gpuscope_gpu_pcie_link_width_max"))
    return Detail({"lanes": lanes, "max_lanes": most}, short=f"PCIe x{lanes} of x{most}")


def _power_limit(condition: Condition, around: Surroundings) -> Detail:
    default = around.gpu_number("gpuscope_gpu_power_limit_watts", "default")
    return Detail({"watts": whole(condition.value), "default_watts": whole(default)})


def _missing_gpus(condition: Condition, around: Surroundings) -> Detail:
    expected = around.node_number("gpuscope_gpus_expected")
    return Detail({"count": whole(condition.value), "expected": whole(expected)})


def _wait(condition: Condition, around: Surroundings) -> Detail:
    busy = around.gpu_number("gpuscope_gpu_utilization_minute_ratio")
    percent = whole(100 * condition.value)
    return Detail({"percent": percent, "busy": whole(busy if busy is ABSENT else 100 * busy)})


def _working(condition: Condition, around: Surroundings) -> Detail:
    here = condition.subject.instance
    return Detail({"working": join_indices(_indices(around.others, here)) or "–"})


def _slow_rank(condition: Condition, around: Surroundings) -> Detail:
    """`GPU 3`, or `node n2 GPU 3` where it is on another node."""
    here = condition.subject.instance
    if own := _indices(around.others, here):
        return Detail({"slow": f"GPU {join_indices(own)}"})
    for labels in around.others:
        instance = labels.get("instance", "")
        return Detail({"slow": f"{instance} GPU {join_indices(_indices(around.others, instance))}"})
    return Detail({"slow": "–"})


def _rail_count(condition: Condition, around: Surroundings) -> Detail:
    return Detail({"device": condition.labels.get("device", ""), "count": whole(condition.value)})


def _hang(condition: Condition, around: Surroundings) -> Detail:
    """By the rank that the others wait for; no agent knows the GPU of one whose process is gone."""
    rank = condition.labels.get("rank", "")
    if not condition.subject.uuid:
        return Detail({"rank": rank, "host": condition.labels.get("host", "") or "–"}, "job_hangs.elsewhere")
    is_behind = condition.labels.get("reason") == "behind"
    return Detail({"rank": rank}, "" if is_behind else "job_hangs.silent")


def _indices(others: Iterable[Mapping[str, str]], instance: str) -> list[str]:
    return list(dict.fromkeys(labels.get("gpu", "") for labels in others if labels.get("instance") == instance))


def _allocated(condition: Condition, around: Surroundings) -> Detail:
    used = len({(labels.get("instance"), labels.get("uuid")) for labels in around.others})
    return Detail({"used": used}, "allocated_unused.some") if used else NO_DETAIL


def _value_as(name: str, scale: float = 1.0) -> Describe:
    return lambda condition, around: Detail({name: whole(scale * condition.value)})


def _label_as(name: str) -> Describe:
    return lambda condition, around: Detail({name: condition.labels.get(name, "") or "–"})


def _constant(name: str, value: int) -> Describe:
    return lambda condition, around: Detail({name: value})


def _source(condition: Condition, around: Surroundings) -> Detail:
    source = condition.labels.get("source", "")
    return Detail({"source": source}, next_key=STEP_KEYS.get(source, ""))


def _slow_source(condition: Condition, around: Surroundings) -> Detail:
    return Detail({"source": condition.labels.get("source", ""), "seconds": round(SOURCE_SLOW_SECONDS)})


def whole(value: Maybe[float]) -> int | str:
    """For texts only: an absent number is a dash there."""
    if value is ABSENT or not abs(value) < 2**53:  # NaN and infinities, too
        return "–"
    return round(value)


DESCRIBE: Final[dict[str, Describe]] = {
    "node_down": _gone,
    "target_down": _target,
    "source_down": _source,
    "source_slow": _slow_source,
    "gpus_missing": _missing_gpus,
    "host_memory_low": _constant("percent", round(100 * HOST_MEMORY_RATIO)),
    "disk_filling": _label_as("mountpoint"),
    "clock_skew": _value_as("seconds"),
    "gpu_lost": _lost,
    "recovery_action": _value_as("action"),
    **{row.kind: _error(errors) for errors in catalogues() for row in errors.checks},
    "ecc_uncorrected": _value_as("count"),
    "failed_jobs": _value_as("count"),
    "throttled": _throttle,
    "pcie_degraded": _pcie,
    "power_limit_low": _power_limit,
    "nvlink_down": _label_as("link"),
    "nvlink_errors": _label_as("link"),
    "rail_down": _label_as("device"),
    "rail_slow": _label_as("device"),
    "link_flaps": _rail_count,
    "link_errors": _rail_count,
    "job_hangs": _hang,
    **dict.fromkeys(("waits_for_disk", "waits_for_network", "waits_for_data"), _wait),
    "waits_for_rank": _slow_rank,
    "only_some_work": _working,
    "allocated_unused": _allocated,
    "queue_waits": _value_as("count"),
    "slurm_queue_stuck": _value_as("count"),
    "slurm_dbd_backlog": _value_as("count"),
}


def describe(condition: Condition, around: Surroundings) -> Detail:
    described = DESCRIBE.get(condition.check.kind)
    return NO_DETAIL if described is None else described(condition, around)


def evidence_query(check: Check, instance: str, uuids: Iterable[str] = ()) -> str:
    """The check's expression, limited to the subject of the finding."""
    ids = sorted(uuids)
    only = f"instance={quote(instance)}"
    if check.kind in ("node_down", "target_down"):
        return f"up{{{only}}} == 0"
    if check.subject is Subject.OWNER:
        return f"gpuscope_process_sm_ratio{{{only},uuid=~{quote(one_of(ids))}}}"
    if ids:
        info = f'{{__name__=~"gpuscope_(gpu|mig)_info",{only},uuid=~{quote(one_of(ids))}}}'
        return f"({check.promql}) and on (instance, uuid) {info}"
    if check.subject is Subject.NODE:
        return f"({check.promql}) and on (instance) gpuscope_agent_info{{{only}}}"
    return check.promql


MAX_UUIDS_NAMED: Final = 32
_OWNER_LABEL: Final = {"user": "user", "job": "slurm_job", "container": "container"}


def past_evidence(check: Check, owner: FindingOwner, keys: Sequence[tuple[str, str]]) -> str:
    """The check's expression, limited to the GPUs and the owner of a finding over time."""
    uuids = sorted({uuid for _, uuid in keys} - {""})
    query = f"({(uuids and check.lost) or check.promql})"
    if not uuids:
        only = f"instance=~{quote(one_of(sorted({instance for instance, _ in keys})))}"
        return query + f' and on (instance) {{__name__=~"up|gpuscope_agent_info",{only}}}'
    if len(uuids) <= MAX_UUIDS_NAMED:
        query += (
            f' and on (instance, uuid) {{__name__=~"gpuscope_(gpu|mig)_info",uuid=~{quote(one_of(uuids))}}}'
        )
    holder = '{__name__=~"gpuscope_process_memory_bytes|gpuscope_allocation_used",'
    if owner.kind == "pod":
        pod = f"namespace={quote(owner.namespace)},pod={quote(owner.name)}"
        return f"{query} and on (namespace, pod) {holder}{pod}}}"
    label = _OWNER_LABEL.get(owner.kind)
    return query if label is None else f"{query} and on ({label}) {holder}{label}={quote(owner.name)}}}"


_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


def one_of(names: Iterable[str]) -> str:
    """A regular expression that matches these texts. `re.escape` would also escape the dashes of UUIDs."""
    return "|".join(_SPECIAL.sub(r"\\\g<0>", name) for name in names)
