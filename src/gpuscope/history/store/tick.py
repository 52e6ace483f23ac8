"""The input and the result of an append: one scrape of one target as arrays, and the names of targets.

A tick has one timestamp for all its samples, or one per sample (honor_timestamps, remote write). Series ids
come from `Store.resolve`. Refused samples are counted by reason, not raised as exceptions.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuscope.model.series import Labels

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]

TOO_OLD = "too_old"
"""Older than late samples may be, or older than the retention."""
DUPLICATE = "duplicate"
"""Another value for the same series and millisecond."""
IN_FUTURE = "in_future"
"""Further ahead of the clock than `StoreOptions.max_ahead_ms`."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One scrape of one target."""

    target: int
    timestamp: int
    series: Int64s
    values: Float64s
    timestamps: Int64s | None = None

    def __post_init__(self) -> None:
        if self.series.shape != self.values.shape or self.series.ndim != 1:
            raise ValueError("a tick needs one value per series id")
        if self.timestamps is not None and self.timestamps.shape != self.series.shape:
            raise ValueError("a tick needs one timestamp per sample if it has any")


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of a committed tick."""

    accepted: int
    repeated: int = 0
    """Identical samples, or samples that Prometheus would drop silently: not an error for the sender."""
    refused: dict[str, int] = field(default_factory=dict)


# Array functions that numpy lacks, or that are slow to import.

T = TypeVar("T", bound=np.integer[Any])


def distinct(numbers: NDArray[T]) -> NDArray[T]:
    """Return the distinct numbers, ascending. `np.unique` would import `numpy.ma` for this, which takes 20
    ms."""
    ordered = np.sort(numbers)
    if len(ordered) < 2:
        return ordered
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


# Names of targets in the store, and what they say about the origin of a series.
#
# A target is what one tick is appended for: a scraped endpoint, a node that this process collects, a remote
# writer's instance, a rule. The name is stored, so it must stay the same across versions. A series is
# *verified* if only targets wrote it that this server reads itself, or nodes whose write token is bound to
# them: what other writers send may be displayed and may raise alerts, but must not start a command.

_SCRAPE, _LOCAL, _PUSHED = "scrape ", "local ", "remote write "
_NODE = _PUSHED + "node="


def scrape_target_name(labels: Labels, url: str) -> str:
    return _SCRAPE + " ".join(f"{name}={value}" for name, value in labels) + f" {url}"


def local_target_name(labels: Mapping[str, str]) -> str:
    return _LOCAL + " ".join(labels.values())


def node_target_name(node: str, job: str, instance: str) -> str:
    """Of a sender whose token is bound to `node`."""
    return f"{_NODE}{node} job={job} instance={instance}"


def remote_target_name(sender: str, job: str, instance: str) -> str:
    """Of any other remote writer."""
    return f"{_PUSHED}job={job} instance={instance}" if instance else f"{_PUSHED}{sender} {job}"


def is_pushed(name: str) -> bool:
    """Whether the samples of the target came by remote write."""
    return name.startswith(_PUSHED)


def belongs_to_node(instance: str, node: str) -> bool:
    """`node7`, or `node7:9400` with any port."""
    name, colon, port = instance.rpartition(":")
    return instance == node or (colon == ":" and name == node and port.isdecimal())


def is_verified(labels: Mapping[str, str], writers: Iterable[str]) -> bool:
    """`writers` are the names of all targets that wrote the series. With honor_labels a target may repeat what
    anybody pushed to it, in the name of another instance: such a series is not verified."""
    instance, names = labels.get("instance", ""), tuple(writers)
    return bool(instance and names) and all(
        (name.startswith(_SCRAPE) and f" instance={instance} " in name)
        or (name.startswith(_LOCAL) and name.endswith(f" {instance}"))
        or (name.startswith(_NODE) and name.endswith(f" instance={instance}"))
        for name in names
    )


class OwnInstances:
    """The label pairs `job` and `instance` of the targets that this process reads now. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.version = 0
        """Incremented by every change."""

    def add(self, labels: Mapping[str, str]) -> None:
        self._change(labels, 1)

    def remove(self, labels: Mapping[str, str]) -> None:
        self._change(labels, -1)

    def _change(self, labels: Mapping[str, str], by: int) -> None:
        pair = labels.get("job", ""), labels.get("instance", "")
        if not pair[1]:
            return
        with self._lock:
            self._counts[pair] += by
            if self._counts[pair] <= 0:
                del self._counts[pair]
            self.version += 1

    def __contains__(self, pair: tuple[str, str]) -> bool:
        return pair in self._counts
