"""slurmrestd's JSON as readings, from v0.0.36 to v0.0.45.

A number is a number in old versions and `{"set", "infinite", "number"}` in new ones; a state is a text or a
list. Whatever is missing or of another type is absent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from gpuscope.agent.sources.slurm.gres import (
    MAX_HOSTS,
    expand_hostlist,
    gres_of_tres,
    parse_gres,
    parse_held,
    reserved_gpus,
    uncounted_shares,
)
from gpuscope.agent.sources.slurm.values import MAX_TEXT_CHARACTERS, MAX_VALUE, count_array_tasks, node_flags
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import (
    HOLDS_RESOURCES,
    PENDING,
    FairShare,
    JobPlacement,
    License,
    Reservation,
    RpcCount,
    SchedulerStats,
    SlurmJob,
    SlurmNode,
)

Row = Mapping[str, Any]
MIB: Final = 1 << 20
MAX_WORDS: Final = 1000  # partitions, states or flags of one row
_UNSET: Final = frozenset({4294967294, 4294967295, 18446744073709551614, 18446744073709551615})
_JOB_FLAG_STATES = ("COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "RESIZING", "REQUEUED")
_NOT_USABLE = frozenset({"drain", "fail"})


def number(value: object) -> Maybe[float]:
    if isinstance(value, Mapping):
        if value.get("infinite") is True or value.get("set") is False:
            return ABSENT
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _UNSET:
        return ABSENT
    if not abs(value) <= MAX_VALUE:  # NaN and Infinity too: Python's JSON has them
        return ABSENT
    return value


def _integer(row: Row, name: str) -> Maybe[int]:
    found = number(row.get(name))
    return ABSENT if found is ABSENT else int(found)


def _positive(row: Row, name: str) -> Maybe[float]:
    """A time or an id; 0 means none."""
    found = number(row.get(name))
    return ABSENT if found is ABSENT or found <= 0 else found


def _text(row: Row, name: str) -> str:
    found = row.get(name)
    return found[:MAX_TEXT_CHARACTERS] if isinstance(found, str) else ""


def _words(value: object) -> list[str]:
    return [word[:MAX_TEXT_CHARACTERS] for word in islice(_whole_words(value), MAX_WORDS)]


def _whole_words(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from (word for word in value.split(",") if word)
    elif isinstance(value, list):
        yield from (word for word in value if isinstance(word, str))


def to_job(row: Row) -> SlurmJob | None:
    job_id, states = _integer(row, "job_id"), _words(row.get("job_state"))
    if job_id is ABSENT or not states:
        return None
    # squeue shows a flag such as COMPLETING in place of the base state.
    state = next((flag for flag in _JOB_FLAG_STATES if flag in states[1:]), states[0])
    tasks, array_job = _text_of_any_length(row, "array_task_string"), _positive(row, "array_job_id")
    task = _integer(row, "array_task_id")
    tres = _text_of_any_length(row, "tres_req_str" if state == PENDING else "tres_alloc_str")
    cpus, nodes = _integer(row, "cpus"), _integer(row, "node_count")
    het = _positive(row, "het_job_id")
    return SlurmJob(
        job_id=job_id,
        user=_text(row, "user_name"),
        account=_text(row, "account"),
        partitions=tuple(_words(row.get("partition"))),
        state=state,
        reason=_text(row, "state_description") or _text(row, "state_reason"),  # as squeue does
        name=_text(row, "name"),
        cpus=0 if cpus is ABSENT else cpus,
        node_count=0 if nodes is ABSENT else nodes,
        gres=gres_of_tres(tres),
        node_list=_text_of_any_length(row, "nodes"),
        tasks=count_array_tasks(tasks) if tasks else 1,
        array_job_id=ABSENT if array_job is ABSENT else int(array_job),
        array_task=tasks or ("" if task is ABSENT or array_job is ABSENT else str(task)),
        het_job_id=ABSENT if het is ABSENT else int(het),
        qos=_text(row, "qos"),
        submitted_at=_positive(row, "submit_time"),
        eligible_at=_positive(row, "eligible_time"),
        started_at=_positive(row, "start_time"),
        ends_at=ABSENT if _is_unlimited(row) and state in HOLDS_RESOURCES else _positive(row, "end_time"),
    )


def _is_unlimited(row: Row) -> bool:
    """Then `end_time` of a job that runs is a year after its start; squeue gives no end."""
    return "time_limit" in row and number(row["time_limit"]) is ABSENT


def _text_of_any_length(row: Row, name: str) -> str:
    found = row.get(name)
    return found if isinstance(found, str) else ""


def to_placements(row: Row, max_placements: int) -> tuple[JobPlacement, ...]:
    """`gres_detail` has one entry for each node, in the order of the hostlist; () if they are not known."""
    details = list(_whole_words(row.get("gres_detail")))
    try:
        nodes = expand_hostlist(_text_of_any_length(row, "nodes"), min(max_placements, MAX_HOSTS))
    except ValueError:
        return ()
    if not details:
        details = [""] * len(nodes)
    if len(details) != len(nodes):
        return ()
    found: list[JobPlacement] = []
    for node, text in zip(nodes, details, strict=True):
        held = parse_held(text)
        if held is ABSENT:
            return ()
        found.append(JobPlacement(node, held))
    return tuple(found)


def to_node(row: Row) -> SlurmNode | None:
    name = _text(row, "name")
    states = [word.lower() for word in _words(row.get("state"))]
    if not name or not states:
        return None
    flags = node_flags((*states[1:], *(flag.lower() for flag in _words(row.get("state_flags")))))
    base = states[0]
    cpus, allocated = _integer(row, "cpus"), _integer(row, "alloc_cpus")
    idle: Maybe[int] = ABSENT
    if cpus is not ABSENT and allocated is not ABSENT:
        idle = 0 if base in ("down", "error") or flags & _NOT_USABLE else cpus - allocated
    reason = _text(row, "reason")
    load = number(row.get("cpu_load"))
    free = number(row.get("free_mem", row.get("free_memory")))
    return SlurmNode(
        name=name,
        partitions=tuple(_words(row.get("partitions"))),
        long_state=long_state(base, flags),
        base_state=base,
        flags=flags,
        cpus_allocated=allocated,
        cpus_idle=idle,
        cpus_other=cpus - allocated - idle
        if cpus is not ABSENT and allocated is not ABSENT and idle is not ABSENT
        else ABSENT,
        cpus=cpus,
        memory_bytes=_mebibytes(number(row.get("real_memory"))),
        memory_allocated_bytes=_mebibytes(number(row.get("alloc_memory"))),
        memory_free_bytes=_mebibytes(free),
        cpu_load=ABSENT if load is ABSENT else load / 100,
        gres=parse_gres(_text_of_any_length(row, "gres")),
        gres_used=parse_gres(_text_of_any_length(row, "gres_used")),
        gres_uncounted=uncounted_shares(_text_of_any_length(row, "gres_used")),
        reason=reason,
        reason_by=_text(row, "reason_set_by_user") if reason else "",
        reason_at=_positive(row, "reason_changed_at") if reason else ABSENT,
    )


def _mebibytes(count: Maybe[float]) -> Maybe[int]:
    return ABSENT if count is ABSENT or count < 0 else int(count) * MIB


def long_state(base: str, flags: frozenset[str]) -> str:
    """What `sinfo` would show: one word for the base state and the flag that matters most, and a suffix."""
    busy = base in ("allocated", "mixed") or "completing" in flags
    word = base
    if "drain" in flags and base != "unknown":
        word = "draining" if busy else "drained"
    elif "fail" in flags:
        word = "failing" if busy else "fail"
    elif base == "idle":
        order = ("maint", "powered_down", "powering_down", "powering_up", "completing", "reserved", "planned")
        word = next((flag for flag in order if flag in flags), base)
    if "not_responding" in flags:
        return word + "*"
    return word + "-" if "planned" in flags and word == base else word


def to_reservation(row: Row, nodes: Mapping[str, SlurmNode], now: float) -> Reservation:
    node_list = _text_of_any_length(row, "node_list")
    gpus: Maybe[int] = ABSENT
    with contextlib.suppress(ValueError):
        tres, some_cores = _text_of_any_length(row, "tres"), bool(row.get("core_specializations"))
        gpus = reserved_gpus(tres, expand_hostlist(node_list), nodes, some_cores=some_cores)
    starts, ends = _positive(row, "start_time"), _positive(row, "end_time")
    active = starts is not ABSENT and starts <= now and (ends is ABSENT or now < ends)
    return Reservation(
        name=_text(row, "name"),
        state="ACTIVE" if active else "INACTIVE",
        starts_at=starts,
        ends_at=ends,
        node_list=node_list,
        node_count=_integer(row, "node_count"),
        cores=_integer(row, "core_count"),
        gpus=gpus,
        partition=_text(row, "partition"),
        users=_text(row, "users"),
        accounts=_text(row, "accounts"),
        flags=",".join(_words(row.get("flags"))),
    )


def to_license(row: Row) -> License | None:
    total, used = _integer(row, "Total"), _integer(row, "Used")
    if total is ABSENT or used is ABSENT:
        return None
    free, reserved = _integer(row, "Free"), _integer(row, "Reserved")
    return License(
        name=_text(row, "LicenseName"),
        count=total,
        used=used,
        free=total - used if free is ABSENT else free,
        reserved=0 if reserved is ABSENT else reserved,
        remote=row.get("Remote") is True,
    )


def to_share(row: Row) -> FairShare:
    is_user = "USER" in _words(row.get("type"))
    name, parent = _text(row, "name"), _text(row, "parent")
    factors = row.get("fairshare")
    factors = factors if isinstance(factors, Mapping) else {}
    factor = number(factors.get("factor"))
    return FairShare(
        account=parent if is_user else name,
        parent="" if is_user else parent,
        user=name if is_user else "",
        raw_shares=number(row.get("shares")),
        norm_shares=number(row.get("shares_normalized")),
        raw_usage=number(row.get("usage")),
        effective_usage=number(row.get("effective_usage")),
        # Under Fair Tree an account has none, and slurmrestd prints 0 for it.
        fair_share=ABSENT if factor == 0 and not is_user else factor,
        level_fs=number(factors.get("level")),
    )


_SERVER = {
    "Server thread count": "server_thread_count", "Agent queue size": "agent_queue_size",
    "Agent count": "agent_count", "Agent thread count": "agent_thread_count",
    "DBD Agent queue size": "dbd_agent_queue_size", "Jobs submitted": "jobs_submitted",
    "Jobs started": "jobs_started", "Jobs completed": "jobs_completed", "Jobs canceled": "jobs_canceled",
    "Jobs failed": "jobs_failed", "Jobs pending": "jobs_pending", "Jobs running": "jobs_running",
}  # fmt: skip
_MAIN = {
    "Last cycle": "schedule_cycle_last", "Max cycle": "schedule_cycle_max",
    "Total cycles": "schedule_cycle_total", "Mean cycle": "schedule_cycle_mean",
    "Mean depth cycle": "schedule_cycle_mean_depth", "Cycles per minute": "schedule_cycle_per_minute",
    "Last queue length": "schedule_queue_length",
}  # fmt: skip
_BACKFILL = {
    "Total backfilled jobs (since last slurm start)": "bf_backfilled_jobs",
    "Total backfilled jobs (since last stats cycle start)": "bf_last_backfilled_jobs",
    "Total backfilled heterogeneous job components": "bf_backfilled_het_jobs",
    "Total cycles": "bf_cycle_counter", "Last cycle": "bf_cycle_last", "Max cycle": "bf_cycle_max",
    "Mean cycle": "bf_cycle_mean", "Depth Mean": "bf_depth_mean", "Last queue length": "bf_queue_len",
}  # fmt: skip


def to_scheduler(row: Row) -> SchedulerStats:
    """By the names that sdiag prints, so that both ways fill the same metrics."""
    return SchedulerStats(
        server=_renamed(row, _SERVER),
        main=_renamed(row, _MAIN),
        backfill=_renamed(row, _BACKFILL),
        main_exits=_numbers(row.get("schedule_exit")),
        backfill_exits=_numbers(row.get("bf_exit")),
        rpcs_by_type=_rpcs(row.get("rpcs_by_message_type"), "message_type"),
        rpcs_by_user=_rpcs(row.get("rpcs_by_user"), "user"),
        answered_at=number(row.get("req_time")),
        statistics_since=number(row.get("req_time_start")),
        jobs_counted_at=number(row.get("job_states_ts")),
    )


def _renamed(row: Row, names: Mapping[str, str]) -> dict[str, float]:
    found = {name: number(row.get(key)) for name, key in names.items()}
    return {name: value for name, value in found.items() if value is not ABSENT}


def _numbers(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    found = {str(name): number(one) for name, one in value.items()}
    return {name: one for name, one in found.items() if one is not ABSENT}


def _rpcs(value: object, name: str) -> tuple[RpcCount, ...]:
    rows = [row for row in value[:500] if isinstance(row, Mapping)] if isinstance(value, list) else []
    found = []
    for row in rows:
        count, spent = _integer(row, "count"), number(row.get("total_time"))
        if count is not ABSENT and spent is not ABSENT:
            found.append(RpcCount(_text(row, name), count, spent / 1e6))
    return tuple(found)
