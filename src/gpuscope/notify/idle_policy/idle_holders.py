"""Who holds idle GPUs now: Slurm jobs and pods with all of their GPUs, and how long each has been idle.

Input: an engine with the agents' `gpuscope_owner_idle_seconds`, which is 0 while an owner works and absent
while its work is not known. A GPU whose work is not known is never idle, nor one whose last sample is old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.engines.query_engine import LabelledValue, QueryEngine, labelled_values

MAX_HOLDERS: Final = 20_000
_KINDS: Final = 'kind=~"job|pod"'
MAX_AGE_SECONDS: Final = 180.0
"""An engine shows a sample for five minutes: meanwhile the holder may have worked."""
_IDLE: Final = f"gpuscope_owner_idle_seconds{{{_KINDS}}}"


@dataclass(frozen=True, slots=True)
class HolderKey:
    kind: str
    name: str
    namespace: str = ""

    @property
    def text(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


@dataclass(slots=True)
class IdleHolder:
    key: HolderKey
    idle_seconds: dict[str, float] = field(default_factory=dict)
    """By GPU, `node/0`: only GPUs whose work is known."""
    gpus: int = 0
    """All that it holds, also those whose work is not known."""
    user: str = ""
    account: str = ""
    partition: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def longest_idle(self) -> float:
        return max(self.idle_seconds.values(), default=0.0)

    @property
    def all_idle(self) -> float:
        """How long all of its GPUs have been idle; 0 if the work of one is not known."""
        if len(self.idle_seconds) < max(1, self.gpus):
            return 0.0
        return min(self.idle_seconds.values())

    def idle_gpus(self, seconds: float) -> list[str]:
        return sorted(gpu for gpu, idle in self.idle_seconds.items() if idle >= seconds)


async def read_idle_holders(engine: QueryEngine, at_ms: int) -> list[IdleHolder]:
    async def query(expression: str) -> list[LabelledValue]:
        found = await engine.instant(expression, at_ms, max_series=MAX_HOLDERS * 16)
        return labelled_values(found)

    holders: dict[HolderKey, IdleHolder] = {}
    for labels, idle in await query(f"{_IDLE} and time() - timestamp({_IDLE}) < {MAX_AGE_SECONDS:g}"):
        key = HolderKey(labels.get("kind", ""), labels.get("name", ""), labels.get("namespace", ""))
        holder = holders.setdefault(key, IdleHolder(key))
        holder.idle_seconds[f"{labels.get('instance', '')}/{labels.get('gpu', '')}"] = idle
    for labels, count in await query(f"gpuscope_owner_gpus_held{{{_KINDS}}}"):
        key = HolderKey(labels.get("kind", ""), labels.get("name", ""), labels.get("namespace", ""))
        if key in holders:
            holders[key].gpus += round(count)
    await _add_owners(holders, await query("gpuscope_job_info"), await query("gpuscope_pod_labels"))
    return list(holders.values())


async def _add_owners(
    holders: Mapping[HolderKey, IdleHolder], jobs: list[LabelledValue], pods: list[LabelledValue]
) -> None:
    by_job: dict[str, dict[str, str]] = defaultdict(dict)
    for labels, _ in jobs:
        by_job[labels.get("slurm_job", "")] |= {name: value for name, value in labels.items() if value}
    by_pod = {(labels.get("namespace", ""), labels.get("pod", "")): labels for labels, _ in pods}
    for key, holder in holders.items():
        if key.kind == "job":
            job = by_job.get(key.name, {})
            holder.user, holder.account = job.get("user", ""), job.get("account", "")
            holder.partition = job.get("partition", "")
        else:
            holder.labels = by_pod.get((key.namespace, key.name), {})
