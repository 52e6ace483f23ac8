"""One row of judgement: a kind of finding, its PromQL expression, how long it lasts before it is an alert, and
the next step.

There is one form of each condition: findings of now, findings over time, alerts, receipts and the idle policy
all evaluate `promql`. The labels of its series say what it is about (`Subject`), its value is the number that
the texts show.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Final

from gpuscope.model.vendor import next_step


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Subject(StrEnum):
    """What a check is about, and by which labels its series identify it."""

    NODE = "node"
    """`instance`."""
    GPU = "gpu"
    """`instance` and `uuid`."""
    OWNER = "owner"
    """The owner's labels, and a GPU's where it is about one: it names a person."""
    PROCESS = "process"
    """The same, and `pid`."""
    SLURM_NODE = "slurm_node"
    """`node`: a node of Slurm, which an agent of another node tells of."""
    SERVICE = "service"


OWNER_LABELS: Final = ("namespace", "pod", "slurm_job", "container", "user")


class Share(StrEnum):
    """Which share of the GPU is lost while a check holds."""

    NONE = "none"
    WHOLE = "whole"
    VALUE = "value"
    """The value of `lost` is the share, 0 to 1."""
    COUNT = "count"
    """The value of `lost` is how many GPUs are lost: nobody reads them."""


@dataclass(frozen=True, slots=True)
class Check:
    kind: str
    """Stable: scripts and text keys rely on it."""
    alert: str
    """The name of its alert rule."""
    severity: Severity
    promql: str
    meaning: str
    next_step: str
    """For any vendor's GPUs; `shown_step` is what people read."""
    _: KW_ONLY
    subject: Subject
    for_seconds: float = 0.0
    """How long it must last before it becomes an alert."""
    lead_seconds: float = 0.0
    """How long the condition has lasted when the expression begins to see it."""
    value_is_age: bool = False
    """The value says for how many seconds it has lasted."""
    nothing_works: bool = False
    """It says that no process works on the GPU: a newer reading of one that does ends it at once."""
    share: Share = Share.NONE
    lost: str = ""
    """The expression of the lost share, where it is not `promql`; with the labels of `promql`, or those of the
    GPUs that a service costs (see `lost_key`). Where it says nothing, the cost is not known."""
    others: str = ""
    """The owner's other GPUs that the text names: those that work, the slow rank."""
    inhibited_by: tuple[str, ...] = ()
    """Kinds that explain this one: it is left out while one of them holds for the same GPU or node."""

    @property
    def shown_step(self) -> str:
        """In the vendors' own commands, where they have some for this kind."""
        return next_step(self.kind, self.next_step)

    @property
    def explained_by(self) -> tuple[str, ...]:
        """`inhibited_by`, and that the numbers of its node are old: what happens meanwhile is not known."""
        if self.subject not in (Subject.GPU, Subject.OWNER, Subject.PROCESS) or self.kind == "gpu_lost":
            return self.inhibited_by
        return tuple(dict.fromkeys((*self.inhibited_by, "node_down", "node_stale")))

    @property
    def every_seconds(self) -> float:
        """How often it is evaluated: at once where somebody must act, seldom where nobody need act soon or
        where it looks at half an hour."""
        if self.subject is Subject.NODE and "offset 1d" in self.promql:
            return USUAL_SECONDS  # a node that is down: the picture shows it at once
        if self.severity is Severity.CRITICAL:
            return URGENT_SECONDS
        return SLOW_SECONDS if self.severity is Severity.INFO or looks_far_back(self.promql) else USUAL_SECONDS


def looks_far_back(expression: str) -> bool:
    """Whether it reads many samples at each evaluation, so that it is evaluated once a minute."""
    return re.search(r"\[(?:1d|6h|3h|1h|40m|30m)", expression) is not None


URGENT_SECONDS: Final = 4.0
USUAL_SECONDS: Final = 15.0
SLOW_SECONDS: Final = 60.0
