"""The Slurm clusters of a situation, as the agents that read them have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from gpuscope.model.readings.slurm import Gres, JobPlacement, SlurmJob, SlurmNode, SlurmState
from tests.judgement.schedules import parse_schedule, parse_time
from tests.judgement.situation import Grant, Situation


def slurm_state(situation: Situation, cluster: Mapping[str, Any], at: float) -> SlurmState:
    nodes = cluster.get("nodes", {})
    jobs = [
        one
        for one in situation.grants
        if one.job and one.span.has(at) and (not nodes or any(place.node in nodes for place in one.places))
    ]
    return SlurmState(
        up=True,
        read_at=situation.start + at,
        version="24.11.5",
        jobs=(*(_running(situation, one) for one in jobs), *_pending(situation, cluster, at)),
        placements={int(one.job): tuple(_placements(one)) for one in jobs},
        nodes=tuple(_nodes(situation, nodes, jobs, at)),
    )


def _running(situation: Situation, grant: Grant) -> SlurmJob:
    started = situation.start + max(grant.span.begin, -86400.0)
    submitted = situation.start + max(grant.submitted, -86400.0)
    return SlurmJob(
        job_id=int(grant.job),
        user=grant.user,
        account=grant.account,
        partitions=(grant.partition,),
        state=grant.state,
        reason="None",
        name="train",
        cpus=8 * len(grant.places),
        node_count=len({place.node for place in grant.places}),
        gres=(Gres("gpu", "", len(grant.places)),),
        node_list=",".join(sorted({place.node for place in grant.places})),
        submitted_at=submitted,
        eligible_at=submitted,
        started_at=started,
        ends_at=started + 7 * 86400,
    )


def _placements(grant: Grant) -> Iterator[JobPlacement]:
    indices: dict[str, list[int]] = defaultdict(list)
    for place in grant.places:
        indices[place.node].append(place.gpu)
    for node, gpus in indices.items():
        yield JobPlacement(node, (Gres("gpu", "", len(gpus), tuple(gpus)),))


def _pending(situation: Situation, cluster: Mapping[str, Any], at: float) -> Iterator[SlurmJob]:
    for row in cluster.get("pending", ()):
        begin = parse_time(row.get("from", 0), situation.lasts)
        if begin <= at < parse_time(row.get("to", "end"), situation.lasts + 1):
            submitted = situation.start + begin
            yield SlurmJob(
                job_id=row["job"],
                user=row["user"],
                account="lab",
                partitions=("gpu",),
                state="PENDING",
                reason=row.get("reason", "Resources"),
                name="train",
                cpus=8,
                node_count=1,
                gres=(Gres("gpu", "", row.get("gpus", 1)),) if row.get("gpus", 1) else (),
                node_list="",
                submitted_at=submitted,
                eligible_at=submitted,
            )


def _nodes(situation: Situation, nodes: Mapping[str, Any], jobs: list[Grant], at: float) -> Iterator[SlurmNode]:
    for name, row in nodes.items():
        about = row if isinstance(row, dict) else {"gpus": row}
        used = sum(place.node == name for grant in jobs for place in grant.places)
        is_down = parse_schedule(about.get("down", 0), situation.lasts).at(at) > 0
        is_drained = parse_schedule(about.get("drained", 0), situation.lasts).at(at) > 0
        state = "down" if is_down else "idle" if not used else "mixed" if used < about["gpus"] else "allocated"
        yield SlurmNode(
            name=name,
            partitions=("gpu",),
            long_state=state,
            base_state=state,
            flags=frozenset({"drain"} if is_drained else ()),
            gres=(Gres("gpu", "", about["gpus"]),),
            gres_used=(Gres("gpu", "", used),),
            reason=about.get("reason", ""),
        )
