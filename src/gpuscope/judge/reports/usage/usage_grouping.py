"""The groupings of a usage report: by owner of one kind, pod label, node, GPU model or MIG profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.judge.reports.gpu_identities import GpuIdentities
from gpuscope.judge.rules.shipped.rule_files import RolledUpCounter

OWNER_KINDS: Final[Mapping[str, str]] = {
    "user": "user",
    "account": "account",
    "pod": "pod",
    "namespace": "pod",
    "job": "job",
    "label": "pod",
}
"""The kind of owner whose counters are read."""
BY_GPU: Final = ("node", "model", "mig-profile")
GROUPINGS: Final = ("user", "account", "pod", "namespace", "job", *BY_GPU, "label:NAME")
_LABEL_NAME: Final = re.compile(r"[a-zA-Z0-9]([-_./a-zA-Z0-9]*[a-zA-Z0-9])?")
MAX_LABEL_LENGTH: Final = 317
"""Of a Kubernetes label: a prefix of 253 characters, a slash and a name of 63."""


@dataclass(frozen=True, slots=True)
class UsageGrouping:
    by: str
    """`user`, …, or `label:team`."""
    kind: str
    """Of owner; empty if the report is by GPU."""
    label: str = ""
    """The pod label, as it is in series."""

    @property
    def is_by_owner(self) -> bool:
        return bool(self.kind)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of a row's names."""
        return ("namespace", "pod") if self.by == "pod" else (self.by.replace(":", "_"),)

    @property
    def counters(self) -> Mapping[str, RolledUpCounter]:
        """Held, busy, unknown, idle-held and energy."""
        names = _OWNER_COUNTERS if self.is_by_owner else _UNIT_COUNTERS
        return {
            column: RolledUpCounter(name, is_by_owner=self.is_by_owner)
            for column, name in zip(("held", "busy", "unknown", "idle_held", "energy"), names, strict=True)
        }

    @property
    def matchers(self) -> str:
        return f'kind="{self.kind}"' if self.kind else ""


_OWNER_COUNTERS: Final = (
    "owner_gpu_seconds", "owner_busy_seconds", "owner_unknown_seconds", "owner_idle_gpu_seconds",
    "owner_energy_joules",
)  # fmt: skip
_UNIT_COUNTERS: Final = (
    "gpu_held_seconds", "gpu_held_busy_seconds", "gpu_held_unknown_seconds", "gpu_held_idle_seconds",
    "gpu_held_energy_joules",
)  # fmt: skip


def parse_grouping(text: str, origin: str = "--by") -> UsageGrouping:
    by, colon, label = text.partition(":")
    if colon and by == "label":
        if len(label) > MAX_LABEL_LENGTH or not _LABEL_NAME.fullmatch(label):
            raise UsageError(f"{origin}: {label!r} is not the name of a pod label; for example label:team")
        return UsageGrouping(text, "pod", "label_" + re.sub(r"[^a-zA-Z0-9_]", "_", label))
    if by in OWNER_KINDS and by != "label" and not colon:
        return UsageGrouping(by, OWNER_KINDS[by])
    if text in BY_GPU:
        return UsageGrouping(text, "")
    raise UsageError(f"{origin}: {text!r} is not one of {', '.join(GROUPINGS)}")


@dataclass(frozen=True, slots=True)
class RowNames:
    """Names the row that a counter belongs to."""

    grouping: UsageGrouping
    gpus: GpuIdentities = field(default_factory=GpuIdentities)
    pod_labels: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def of(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        uuid = labels.get("uuid", "")
        match self.grouping.by:
            case "node":
                return (self.gpus.node(labels),)
            case "model":
                return (self.gpus.model(uuid),)
            case "mig-profile":
                return (self.gpus.profile(uuid),)
            case "pod":
                return (labels.get("namespace", ""), labels.get("name", ""))
            case "namespace":
                return (labels.get("namespace", ""),)
        if self.grouping.label:
            return (self.pod_labels.get((labels.get("namespace", ""), labels.get("name", "")), ""),)
        return (labels.get("name", ""),)
