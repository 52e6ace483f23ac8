"""The state of a GPU in one word: the first of these that holds, worst first.

A check that is true of a GPU gives it a state (STATE_OF_KIND). Without one its use does: `held`, `allocated`,
`busy` or `idle`. `held` needs proof: a GPU with processes whose activity is not known counts as busy. `idle`
needs proof too: a GPU whose process list could not be read is `stale`, and one that a scheduler has given away
is never `idle`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from gpuscope.judge.checks.facts import GpuFacts, NodeFacts, is_stale
from gpuscope.judge.checks.finding import GpuKey
from gpuscope.judge.checks.thresholds import WORKING_RATIO
from gpuscope.model.readings import ABSENT
from gpuscope.model.vendor import catalogues


class State(StrEnum):
    LOST = "lost"
    GONE = "gone"
    STALE = "stale"
    SICK = "sick"
    THROTTLED = "throttled"
    HELD = "held"
    ALLOCATED = "allocated"
    BUSY = "busy"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class StateRow:
    state: State
    letter: str
    meaning: str
    wants_action: bool


_TABLE: Final = (
    StateRow(State.LOST, "X", "the driver does not reach the GPU", True),
    StateRow(State.GONE, "0", "its node sends nothing", True),
    StateRow(State.STALE, "?", "no fresh numbers from its node, or not known whether somebody has it", True),
    StateRow(State.SICK, "!", "hardware, link or driver is at fault", True),
    StateRow(State.THROTTLED, "T", "something holds its clocks back", True),
    StateRow(State.HELD, "H", "a process holds it and does not work", True),
    StateRow(State.ALLOCATED, "A", "Slurm or Kubernetes gave it to somebody, and no process is on it", False),
    StateRow(State.BUSY, "B", "it works, or a process holds it and its activity is not known", False),
    StateRow(State.IDLE, "-", "free: no process is on it, and no scheduler gave it away", False),
)

STATES: Final[dict[State, StateRow]] = {row.state: row for row in _TABLE}
WORST_FIRST: Final = tuple(row.state for row in _TABLE)

STATE_OF_KIND: Final[dict[str, State]] = {
    "gpu_lost": State.LOST,
    "recovery_action": State.SICK,
    **{row.kind: State.SICK for errors in catalogues() for row in errors.checks if row.is_sick},
    "ecc_uncorrected": State.SICK,
    "ecc_sram_threshold": State.SICK,
    "row_remap_failed": State.SICK,
    "row_remap_pending": State.SICK,
    "pages_retiring": State.SICK,
    "pcie_degraded": State.SICK,
    "fan_stopped": State.SICK,
    "fabric_not_ready": State.SICK,
    "throttled": State.THROTTLED,
}
"""Worst first. Kinds that are not here leave the GPU's state as it is."""


PROCESSES_UNKNOWN: Final = "processes_unknown"
ALLOCATION_UNKNOWN: Final = "allocation_unknown"
UNKNOWN_USES: Final = {
    PROCESSES_UNKNOWN: "processes unknown",
    ALLOCATION_UNKNOWN: "allocation unknown",
}
"""Why a GPU is stale that answers: nobody knows whether it is free."""


def state_of_use(gpu: GpuFacts) -> State:
    """Held, allocated, busy or idle; stale if its process list could not be read and nothing else tells."""
    working = gpu.busy_ratio
    if working is not ABSENT and working >= WORKING_RATIO:
        return State.BUSY
    holders = gpu.holders
    if not holders:
        count = gpu.process_count
        if count is not ABSENT and count > len(gpu.processes):
            return State.BUSY
        if gpu.allocations:
            return State.ALLOCATED
        return State.STALE if count is ABSENT else State.IDLE
    if any(process.is_active for process in holders):
        return State.BUSY
    known = working is not ABSENT or all(process.is_active is False for process in holders)
    return State.HELD if known else State.BUSY


USES: Final = (State.IDLE, State.STALE, State.ALLOCATED, State.HELD, State.BUSY)
"""States that say only whether a GPU is used, least used first. A board that is split is as much in use as its
most used instance, and not free as long as that is not known of one of them."""
IN_USE: Final = frozenset({State.ALLOCATED, State.HELD, State.BUSY})


@dataclass(frozen=True, slots=True)
class GpuState:
    state: State
    kind: str = ""
    """The finding that gives it this state."""
    why: str = ""
    is_in_use: bool = False
    """A process or an allocation is on it. False if nobody knows: it is lost, gone or stale."""


Reasons = Mapping[str, Mapping[str, str]]
"""Of one node, by UUID: the kinds of its findings, each with the reason in a few words."""


def states_of(
    node: NodeFacts, reasons: Reasons, *, gone: bool, unread: bool, now: float
) -> dict[GpuKey, GpuState]:
    """Of every GPU and MIG instance of a node."""
    instance = node.labels["instance"]
    if gone or unread:
        state = GpuState(State.GONE if gone else State.STALE)
        return {(instance, gpu.labels["uuid"]): state for gpu in node.gpus}
    stale = is_stale(node, now)
    states = {
        (instance, gpu.labels["uuid"]): _state(gpu, reasons.get(gpu.labels["uuid"], {}), stale)
        for gpu in node.gpus
    }
    _join_instances(node, states)
    return states


def _state(gpu: GpuFacts, reasons: Mapping[str, str], stale: bool) -> GpuState:
    if gpu.plain.get("gpuscope_gpu_up") == 0:
        return GpuState(State.LOST, "gpu_lost", reasons.get("gpu_lost", ""))
    if stale:
        return GpuState(State.STALE)
    use = state_of_use(gpu)
    for kind, state in STATE_OF_KIND.items():
        if kind in reasons:
            return GpuState(state, kind, reasons[kind] or kind, use in IN_USE)
    if use is State.IDLE and gpu.may_be_allocated:
        return GpuState(State.STALE, why=ALLOCATION_UNKNOWN)
    return GpuState(use, why=PROCESSES_UNKNOWN if use is State.STALE else "", is_in_use=use in IN_USE)


def _join_instances(node: NodeFacts, states: dict[GpuKey, GpuState]) -> None:
    """A MIG instance has the problems of its board, and a board that was given away as a whole has no free
    instance; a board is in use if one of its instances is."""
    instance = node.labels["instance"]
    given = {gpu.labels["uuid"] for gpu in node.gpus if gpu.allocations and not gpu.parent_uuid}
    for gpu in node.gpus:
        board_key, key = (instance, gpu.parent_uuid), (instance, gpu.labels["uuid"])
        board = states.get(board_key) if gpu.parent_uuid else None
        if board is None:
            continue
        own = states[key]
        if (own.state is State.IDLE or own.why in UNKNOWN_USES) and gpu.parent_uuid in given:
            own = states[key] = GpuState(State.ALLOCATED, is_in_use=True)
        if board.state not in USES and own.state in USES:
            is_known = board.state is not State.LOST
            states[key] = replace(board, is_in_use=own.is_in_use and is_known)
        else:
            shown = max(board, own, key=_use_rank) if board.state in USES and own.state in USES else board
            states[board_key] = replace(shown, is_in_use=board.is_in_use or own.is_in_use)


def _use_rank(one: GpuState) -> int:
    return USES.index(one.state)


class CountedGpu(NamedTuple):
    """A GPU or a MIG instance."""

    node: str
    uuid: str
    parent: str
    """The UUID of an instance's GPU; empty for a GPU."""
    state: str
    is_in_use: bool


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """One rule for `/api/live`, the page, `snapshot`, `top` and `free`.

    A unit is what one owner can be given: a GPU that is not split, or a MIG instance of one that is. Each unit
    counts once, by its state, however many processes, pods or jobs share it. It is in use if a process or an
    allocation of a scheduler is on it, and free if its state is `idle`. Of a unit that is lost, gone or stale
    nobody knows; it is neither.
    """

    gpus: int
    """GPUs, split or not."""
    instances: int
    """MIG instances."""
    states: Counter[str]
    """Units by state."""
    in_use: int

    @property
    def units(self) -> int:
        return self.states.total()

    @property
    def free(self) -> int:
        return self.states[State.IDLE]


def count_gpus(rows: Iterable[CountedGpu]) -> GpuCounts:
    listed = list(rows)
    split = {(row.node, row.parent) for row in listed if row.parent}
    units = [row for row in listed if (row.node, row.uuid) not in split]
    return GpuCounts(
        gpus=sum(not row.parent for row in listed),
        instances=sum(bool(row.parent) for row in listed),
        states=Counter(str(row.state) for row in units),
        in_use=sum(row.is_in_use for row in units),
    )
