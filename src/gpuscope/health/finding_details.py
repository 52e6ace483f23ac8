"""What a finding says: its text keys, arguments and evidence, from the facts of the GPU it is about."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.go_quote import quote
from gpuscope.health.check import Check, Subject
from gpuscope.health.facts import GpuFacts
from gpuscope.health.finding import Argument
from gpuscope.health.thresholds import GONE_SHOWN_SECONDS, RECENT_XID_SECONDS
from gpuscope.health.throttles import HINDERING
from gpuscope.health.xids import (
    APPLICATION_XIDS,
    DRIVER_XIDS,
    HARDWARE_XIDS,
    NVLINK_XIDS,
    XidClass,
    explain_xid,
)
from gpuscope.readings import ABSENT, Maybe

XID_TIMES: Final = "gpuscope_gpu_xid_last_timestamp_seconds"


@dataclass(frozen=True, slots=True)
class Detail:
    """What is particular to one finding of a kind; empty keys mean those of the kind itself."""

    args: Mapping[str, Argument] = field(default_factory=dict)
    why_key: str = ""
    next_key: str = ""
    next: str = ""
    """English text that is more exact than the one of `next_key`."""
    since: float | None = None
    """When it began, where the facts themselves say so."""
    short: str = ""
    """The reason in a few words, for the state of the GPU."""


NO_DETAIL: Final = Detail()
Describe = Callable[[GpuFacts, float], Detail]


def _xid_times(gpu: GpuFacts, codes: Iterable[int] | None, now: float, window: float) -> dict[int, float]:
    """XIDs of one kind and their times; `codes` None means those that make the GPU suspect."""
    found = {}
    for text, at in gpu.by_label.get(XID_TIMES, {}).items():
        if not (text.isascii() and text.isdigit() and len(text) < 9) or not now - at < window:
            continue
        code = int(text)
        if code in codes if codes is not None else explain_xid(code).blames_gpu:
            found[code] = at
    return found


def _xid_detail(code: int, since: float | None, why_key: str = "") -> Detail:
    row = explain_xid(code)
    return Detail({"xid": code}, why_key, f"xid.{row.action}", row.next_step, since, f"XID {code}")


def _describe_xid(codes: frozenset[int]) -> Describe:
    def describe(gpu: GpuFacts, now: float) -> Detail:
        times = _xid_times(gpu, codes, now, RECENT_XID_SECONDS)
        if not times:
            return NO_DETAIL
        # The newest says what to do; the oldest says since when.
        return _xid_detail(max(times, key=lambda code: times[code]), min(times.values()))

    return describe


def _describe_lost(gpu: GpuFacts, now: float) -> Detail:
    times = _xid_times(gpu, None, now, GONE_SHOWN_SECONDS)
    if not times:
        return NO_DETAIL
    newest = max(times, key=lambda code: times[code])
    # Only an error of the bus is the moment of the loss itself; another XID may be hours older.
    is_moment = explain_xid(newest).xid_class is XidClass.BUS
    return _xid_detail(newest, times[newest] if is_moment else None, "gpu_lost.xid")


def _describe_throttle(gpu: GpuFacts, now: float) -> Detail:
    active = gpu.by_label.get("gpuscope_gpu_throttle_reason", {})
    reason = next((one for one in HINDERING if active.get(one) == 1), "")
    return Detail({"reason": reason}, next_key=f"throttle.{reason}", short=reason)


def _describe_pcie(gpu: GpuFacts, now: float) -> Detail:
    lanes = whole(gpu.number("gpuscope_gpu_pcie_link_width"))
    max_lanes = whole(gpu.number("gpuscope_gpu_pcie_link_width_max"))
    return Detail({"lanes": lanes, "max_lanes": max_lanes}, short=f"PCIe x{lanes} of x{max_lanes}")


def _describe_power_limit(gpu: GpuFacts, now: float) -> Detail:
    watts = {
        name: whole(gpu.number("gpuscope_gpu_power_limit_watts", limit))
        for name, limit in (("watts", "enforced"), ("default_watts", "default"))
    }
    return Detail(watts)


def _describe_count(name: str, metric: str, label: str = "") -> Describe:
    return lambda gpu, now: Detail({name: whole(gpu.number(metric, label))})


def whole(value: Maybe[float]) -> int | str:
    """For texts only: an absent number is a dash there."""
    if value is ABSENT or not abs(value) < 2**53:  # NaN and infinities, too
        return "–"
    return round(value)


def _describe_since(metric: str) -> Describe:
    return lambda gpu, now: Detail(since=gpu.plain.get(metric))


DESCRIBE: Final[dict[str, Describe]] = {
    "hung": _describe_since("gpuscope_gpu_hung_since_seconds"),
    "unused": _describe_since("gpuscope_gpu_free_since_seconds"),
    "gpu_lost": _describe_lost,
    "recovery_action": _describe_count("action", "gpuscope_gpu_recovery_action"),
    "xid_hardware": _describe_xid(HARDWARE_XIDS),
    "xid_nvlink": _describe_xid(NVLINK_XIDS),
    "xid_driver": _describe_xid(DRIVER_XIDS),
    "xid_application": _describe_xid(APPLICATION_XIDS),
    "ecc_uncorrected": _describe_count("count", "gpuscope_gpu_ecc_errors_total", "uncorrected,volatile"),
    "throttled": _describe_throttle,
    "pcie_degraded": _describe_pcie,
    "power_limit_low": _describe_power_limit,
}


def describe_gpu(kind: str, gpu: GpuFacts, now: float) -> Detail:
    describe = DESCRIBE.get(kind)
    return NO_DETAIL if describe is None else describe(gpu, now)


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
    return f"({check.promql}) and on (instance) gpuscope_agent_info{{{only}}}"


_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


def one_of(names: Iterable[str]) -> str:
    """A regular expression that matches these texts. `re.escape` would also escape the dashes of UUIDs."""
    return "|".join(_SPECIAL.sub(r"\\\g<0>", name) for name in names)
