"""The events of `GET /api/live/stream`: the live picture once, then what changed in it."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from gpuscope.serve.api_types.findings_json import FindingJson
from gpuscope.serve.api_types.live_json import (
    GoneTargetJson,
    LiveCounts,
    LiveGpu,
    LiveJob,
    LiveNode,
    LivePicture,
    LiveSession,
)


class StreamColumns(TypedDict):
    """Which keys are sent as columns of whole numbers, and how many of them make 1 of the key's unit."""

    nodes: dict[str, float]
    gpus: dict[str, float]
    sessions: dict[str, float]


class StreamPicture(TypedDict):
    """Event `picture`: the first event, or the next one for a client that is too far behind."""

    columns: StreamColumns
    """Numbers of the picture are rounded to these units: 100 is a step of 0.01."""
    picture: LivePicture


class PlacedNode(TypedDict):
    """A row and its place in the list."""

    at: int
    row: LiveNode


class PlacedGpu(TypedDict):
    """A row and its place in the list."""

    at: int
    row: LiveGpu


class PlacedSession(TypedDict):
    """A row and its place in the list."""

    at: int
    row: LiveSession


class PlacedJob(TypedDict):
    """A row and its place in the list."""

    at: int
    row: LiveJob


class PlacedFinding(TypedDict):
    """A row and its place in the list."""

    at: int
    row: FindingJson


class ColumnDeltas(TypedDict):
    """The change of one number of every row."""

    steps: str
    """One character per row, in the order of the rows: `O` for no change, the next in ASCII for one step more
    (without the backslash), `~` for a change that is in `far`."""
    far: NotRequired[list[float | None]]
    """The new number of each `~`, in steps; null if it is absent now."""


class NodeChanges(TypedDict):
    """Changes of `nodes`, in this order: `removed`, `added`, `replaced`, `numbers`."""

    removed: NotRequired[list[int]]
    """Places in the old list, ascending."""
    added: NotRequired[list[PlacedNode]]
    """Places in the new list, ascending."""
    replaced: NotRequired[list[PlacedNode]]
    """Places in the new list."""
    numbers: NotRequired[dict[str, ColumnDeltas]]
    """By key, for all rows of the new list."""


class GpuChanges(TypedDict):
    """Changes of `gpus`, as in NodeChanges."""

    removed: NotRequired[list[int]]
    added: NotRequired[list[PlacedGpu]]
    replaced: NotRequired[list[PlacedGpu]]
    numbers: NotRequired[dict[str, ColumnDeltas]]


class SessionChanges(TypedDict):
    """Changes of `sessions`, as in NodeChanges."""

    removed: NotRequired[list[int]]
    added: NotRequired[list[PlacedSession]]
    replaced: NotRequired[list[PlacedSession]]
    numbers: NotRequired[dict[str, ColumnDeltas]]


class JobChanges(TypedDict):
    """Changes of `jobs`, as in NodeChanges."""

    removed: NotRequired[list[int]]
    added: NotRequired[list[PlacedJob]]
    replaced: NotRequired[list[PlacedJob]]


class FindingChanges(TypedDict):
    """Changes of `findings`, as in NodeChanges."""

    removed: NotRequired[list[int]]
    added: NotRequired[list[PlacedFinding]]
    replaced: NotRequired[list[PlacedFinding]]


class LiveDifference(TypedDict):
    """Event `difference`: what changed since the event before. A key that is left out did not change."""

    now: float
    taken_at: NotRequired[float]
    counts: NotRequired[LiveCounts]
    left_out: NotRequired[int]
    not_known: NotRequired[int]
    nodes: NotRequired[NodeChanges]
    gpus: NotRequired[GpuChanges]
    sessions: NotRequired[SessionChanges]
    jobs: NotRequired[JobChanges]
    findings: NotRequired[FindingChanges]
    targets: NotRequired[list[GoneTargetJson]]
    """All of them, if one changed."""


class StreamClock(TypedDict):
    """Event `clock`, before each group of events: the server's time when they are sent."""

    now: float


class StreamProblem(TypedDict):
    """Event `problem`: the numbers cannot be read at the moment; the last picture stays."""

    error: str
