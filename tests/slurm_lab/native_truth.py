"""Every native metric of a Slurm cluster as its own clients say it.

The command lines are not gpuscope's, and none of its parsers is used: a mistake there shows as a difference.

Keys are series as text. What changes with time alone (waiting times) is kept as the times it is made from.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tests.slurm_lab.cluster import SlurmCluster

MIB = 1 << 20
BASE_STATES = ("allocated", "down", "idle", "mixed", "unknown")
HOLDING = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING"
WAITING_BOUNDS = (60, 300, 900, 3600, 14400, 43200, 86400, 259200, 604800)
FLAG_NAMES = {"maintenance": "maint"}
"""Flags that scontrol spells in another way than sinfo."""
END = "#end-of-name"
HELD = r"(?:^|,)(gpu|shard|mps):(?:([^:,(]+):)?\d+\(([^)]*)\)"
Samples = dict[str, float]


@dataclass(frozen=True, slots=True)
class NativeTruth:
    """`eligible_at` has the time of every pending task, by partition."""

    samples: Samples
    eligible_at: Mapping[str, list[int]]

    def at(self, now: float) -> Samples:
        """With waiting times as they are at that moment."""
        found = dict(self.samples)
        for partition, times in self.eligible_at.items():
            waited = [now - time for time in times if time <= now]
            if not waited:
                continue
            found[series("partition_oldest_pending_seconds", partition=partition)] = max(waited)
            for bound in (*WAITING_BOUNDS, float("inf")):
                within = f"{bound:g}" if bound != float("inf") else "+Inf"
                name = series("partition_jobs_waiting", partition=partition, within=within)
                found[name] = sum(one <= bound for one in waited)
        return found


def series(metric: str, **labels: str) -> str:
    """As in the text format: a backslash, a quote and a line break are escaped."""
    escaped = {name: _escape(value) for name, value in labels.items()}
    text = ",".join(f'{name}="{value}"' for name, value in escaped.items())
    return f"gpuscope_slurm_{metric}" + (f"{{{text}}}" if text else "")


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def native_truth(cluster: SlurmCluster, imitators: Collection[str] = (), mode: str = "commands") -> NativeTruth:
    """`imitators` are jobs whose name imitates a record: where their own GPUs are must not be shown."""
    found: Counter[str] = Counter()
    found[series("up")] = int("is UP" in cluster.run("scontrol", "ping"))
    version = cluster.run("sinfo", "--version").split()[1]
    found[series("version_info", version=version, mode=mode)] = 1
    found.update(_node_samples(cluster))
    found.update(_count_samples(cluster))
    found.update(_job_samples(cluster, imitators))
    found.update(_pending_samples(cluster))
    found.update(_reservation_samples(cluster))
    found.update(_license_samples(cluster))
    found.update(_share_samples(cluster))
    return NativeTruth(dict(found), _eligible_times(cluster))


def _fields(text: str) -> dict[str, str]:
    return {key: "" if value == "(null)" else value for key, value in re.findall(r"(\w+)=(\S*)", text)}


def gres_counts(text: str) -> list[tuple[str, str, int]]:
    """(kind, model, count) of `gpu:a100:2(IDX:0-1),shard:4`."""
    text = re.sub(r"\(CNT:(\d+)\)", r":\1", text)  # GRES without device files
    found = re.findall(r"(?:^|,)(gpu|shard|mps):(?:([^:,(]+):)?(\d+)(?=[,(]|$)", text)
    return [(kind, model, int(count)) for kind, model, count in found]


def gpus_with_shares(used: str) -> Counter[str]:
    """By model, from `shard:h100:2(2/2,0/2)`, or up to 22.05 `shard:h100:1(IDX:0)`."""
    found = Counter[str]()
    for model, by_gpu in re.findall(r"(?:shard|mps):([^:,(]+):\d+\(([^)]*)\)", used):
        shared = by_gpu.removeprefix("IDX:").split(",")
        found[model] += sum(count[0] not in "0-N" if "/" in count else count != "N/A" for count in shared)
    return found


def _node_samples(cluster: SlurmCluster) -> Samples:
    found: defaultdict[str, float] = defaultdict(float)
    states = cluster.run("sinfo", "-h", "-N", "-p", "all", "-o", "%N;%C").splitlines()
    cpus = dict(line.split(";") for line in states)
    for line in cluster.run("scontrol", "-a", "-d", "-o", "show", "node").splitlines():
        row, line = _fields(line.partition(" Reason=")[0]), line.rstrip()
        node = row["NodeName"]
        base, *flags = row["State"].lower().replace("*", "+not_responding").split("+")
        flags = [FLAG_NAMES.get(flag, flag) for flag in flags]
        for state in {*BASE_STATES, base}:
            found[series("node_state", node=node, state=state)] = int(state == base)
        for flag in flags:
            found[series("node_flag", node=node, flag=flag)] = 1
        reason = re.search(r" Reason=(.*) \[(\w+)@(\d+)\]", line)
        if reason:
            found[series("node_reason_info", node=node, reason=reason[1], by=reason[2])] = 1
            found[series("node_reason_timestamp_seconds", node=node)] = int(reason[3])
        for state, count in zip(("allocated", "idle", "other"), cpus[node].split("/"), strict=False):
            found[series("node_cpus", node=node, state=state)] = int(count)
        for metric, key in (
            ("node_memory_bytes", "RealMemory"),
            ("node_memory_allocated_bytes", "AllocMem"),
            ("node_memory_free_bytes", "FreeMem"),
        ):
            if row[key] != "N/A":
                found[series(metric, node=node)] = int(row[key]) * MIB
        if row["CPULoad"] != "N/A":
            found[series("node_cpu_load", node=node)] = float(row["CPULoad"])
        partitions = row["Partitions"].split(",")
        for partition in partitions:
            found[series("node_partition_info", node=node, partition=partition)] = 1
        for name, gpus in _gpu_samples(node, row, base, flags, partitions).items():
            found[name] += gpus  # sums over nodes
    return dict(found)


def _gpu_samples(
    node: str, row: Mapping[str, str], base: str, flags: Collection[str], partitions: list[str]
) -> Samples:
    free = "idle"
    if "drain" in flags or "maint" in flags:
        free = "drained"
    if base in ("down", "unknown") or "not_responding" in flags:
        free = "down"
    used = Counter[tuple[str, str]]()
    for kind, model, count in gres_counts(row.get("GresUsed", "")):
        used[kind, model] += count
    for model, count in gpus_with_shares(row.get("GresUsed", "")).items():
        used["gpu", model] += count
    found: Counter[str] = Counter()
    for kind, model, total in gres_counts(row["Gres"]):
        if kind != "gpu" and re.search(rf"{kind}:{model}:[1-9]\d*\(IDX:", row["GresUsed"]):
            continue  # up to 22.05: on how many GPUs there are shares, not how many shares
        counts = dict.fromkeys(("allocated", "idle", "drained", "down"), 0)
        counts["allocated"] = used[kind, model]
        counts[free] = total - used[kind, model]
        for state, count in counts.items():
            labels = {"gres": kind, "model": model, "state": state}
            found[series("node_gpus", node=node, **labels)] += count
            found[series("gpus", **labels)] += count
            for partition in partitions:
                found[series("partition_gpus", partition=partition, **labels)] += count
    return dict(found)


def _count_samples(cluster: SlurmCluster) -> Samples:
    found: Counter[str] = Counter()
    for line in cluster.run("squeue", "-a", "-r", "-h", "-t", "all", "-o", "%u;%T;%P;%r;%a").splitlines():
        user, state, partitions, reason, account = line.split(";", 4)
        state = state.lower()
        found[series("jobs", state=state)] += 1
        found[series("user_jobs", user=user, account=account, state=state)] += 1
        for partition in partitions.split(","):
            found[series("partition_jobs", partition=partition, state=state)] += 1
            if state == "pending":
                found[series("partition_jobs_pending", partition=partition, reason=_short(reason))] += 1
    return dict(found)


def _short(reason: str) -> str:
    """`ReqNodeNotAvail, UnavailableNodes:gpu4` is one reason, whatever the nodes are."""
    return re.sub(r", UnavailableNodes:.*", "", reason)


def _eligible_times(cluster: SlurmCluster) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line in cluster.run("squeue", "-arh", "-t", "PD", "-O", "Partition:;,EligibleTime:").splitlines():
        partitions, time = line.split(";")
        for partition in partitions.split(","):
            if time.isdecimal():
                found.setdefault(partition, []).append(int(time))
    return found


def _names(cluster: SlurmCluster) -> dict[str, str]:
    """Names may have line breaks in them; the jobs of the lab do not have this mark."""
    rows = cluster.run("squeue", "-a", "-h", "-t", "all", "-O", f"JobID:;,Name:{END}").split(f"{END}\n")[:-1]
    return {number: name for number, _, name in (row.partition(";") for row in rows)}


def _leaders(cluster: SlurmCluster) -> dict[str, str]:
    """The first component of each heterogeneous job's component."""
    rows = cluster.run("squeue", "-a", "-h", "-t", "all", "-O", "JobID:;,HetJobID:").splitlines()
    return {number: leader.replace("N/A", "") for number, leader in (row.split(";") for row in rows)}


def _job_rows(cluster: SlurmCluster, states: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(number, reason, labels of the info series that both kinds of jobs have)."""
    names, leaders = _names(cluster), _leaders(cluster)
    for line in cluster.run("squeue", "-a", "-h", "-t", states, "-o", "%A;%F;%K;%u;%P;%q;%r;%a").splitlines():
        number, array, task, user, partition, qos, reason, account = line.split(";", 7)
        in_array = task != "N/A"
        yield (
            number,
            reason,
            {
                "slurm_job": number,
                "array_job": array if in_array else "",
                "array_task": task if in_array else "",
                "het_job": leaders[number],
                "name": names[number],
                "user": user,
                "account": account,
                "partition": partition,
                "qos": qos.replace("(null)", ""),
            },
        )


def _record(cluster: SlurmCluster, number: str) -> str:
    """scontrol prints the other tasks of an array, and components of a heterogeneous job, too."""
    records = cluster.run("scontrol", "-d", "show", "job", number).split("\n\n")
    (found,) = (record for record in records if record.startswith(f"JobId={number} "))
    return found


def _job_samples(cluster: SlurmCluster, imitators: Collection[str]) -> Samples:
    found: Counter[str] = Counter()
    found[series("jobs_without_series")] = 0
    for number, _, labels in _job_rows(cluster, HOLDING):
        found[series("job_info", **labels)] = 1
        record = _record(cluster, number)
        times = dict(re.findall(r"\b(SubmitTime|StartTime|EndTime|TimeLimit)=(\S+)", record))
        found[series("job_submit_timestamp_seconds", slurm_job=number)] = int(times["SubmitTime"])
        found[series("job_start_timestamp_seconds", slurm_job=number)] = int(times["StartTime"])
        if "JobState=SUSPENDED" in record:
            found[series("job_suspended", slurm_job=number)] = 1
        if times["TimeLimit"] != "UNLIMITED":
            found[series("job_end_timestamp_seconds", slurm_job=number)] = int(times["EndTime"])
        if number in imitators:
            continue
        found[series("job_gpus", slurm_job=number)] = 0
        # The lab has a job whose name holds such lines; 26.05 prints it a second time in SubmitLine.
        placed = record.replace(labels["name"], "") if "\n" in labels["name"] else record
        for hosts, gres in re.findall(r"^     Nodes=(\S+) CPU_IDs=.* GRES=(\S*)$", placed, re.M):
            for node in cluster.run("scontrol", "show", "hostnames", hosts).split():
                _add_held(found, labels, node, gres)
    return dict(found)


def _add_held(found: Counter[str], labels: Mapping[str, str], node: str, gres: str) -> None:
    number, user, account = labels["slurm_job"], labels["user"], labels["account"]
    found[series("job_node_info", slurm_job=number, node=node)] = 1
    for kind, model, count in gres_counts(gres):
        if not count:
            continue
        held = {"gres": kind, "model": model}
        found[series("user_gpus_allocated", user=user, account=account, **held)] += count
        found[series("account_gpus_allocated", account=account, **held)] += count
        found[series("job_gpus", slurm_job=number)] += count if kind == "gpu" else 0
    for kind, model, inside in re.findall(HELD, gres):
        for index in gpu_indices(inside):
            labels = {"gres": kind, "model": model, "index": index}
            found[series("job_gres_info", slurm_job=number, node=node, **labels)] = 1


def gpu_indices(text: str) -> Iterator[str]:
    """Of `IDX:0,2-3`, and of `-/2,1/2`: how many shards of each GPU are used."""
    for position, part in enumerate(text.removeprefix("IDX:").split(",")):
        if "/" in part:
            if part[0] not in "-0":
                yield str(position)
        elif part:
            first, _, last = part.partition("-")
            yield from map(str, range(int(first), int(last or first) + 1))


def _pending_samples(cluster: SlurmCluster) -> Samples:
    found: Counter[str] = Counter()
    tasks = Counter(cluster.run("squeue", "-a", "-r", "-h", "-t", "PD", "-o", "%A").split())
    for number, reason, labels in _job_rows(cluster, "PENDING"):
        del labels["array_task"]
        found[series("pending_job_info", **labels, reason=_short(reason))] = 1
        if tasks[number] > 1:
            found[series("pending_job_tasks", slurm_job=number)] = tasks[number]
        record = _record(cluster, number)
        eligible = re.search(r"EligibleTime=(\d+)", record)
        if eligible:
            found[series("pending_job_eligible_timestamp_seconds", slurm_job=number)] = int(eligible[1])
        found.update(_requested_samples(number, labels["partition"], record, tasks[number]))
    return dict(found)


def _requested_samples(number: str, partitions: str, record: str, tasks: int) -> Counter[str]:
    """GPUs are in the TRES of a job only with slurmdbd. 22.05 calls the line of a pending job TRES too."""
    requested = re.search(r"\b(?:Req)?TRES=(\S+)", record)
    tres = dict(re.findall(r"gres/(gpu(?::\w+)?)=(\d+)", requested[1] if requested else ""))
    if not tres:
        return Counter()
    found = Counter({series("pending_job_gpus", slurm_job=number): int(tres["gpu"])})
    typed = {name.partition(":")[2]: int(count) for name, count in tres.items() if ":" in name}
    typed[""] = int(tres["gpu"]) - sum(typed.values())
    for partition in partitions.split(","):
        for model, count in typed.items():
            if count:
                name = series("partition_gpus_requested", partition=partition, gres="gpu", model=model)
                found[name] = count * tasks
    return found


def _reservation_samples(cluster: SlurmCluster) -> Samples:
    found: Samples = {}
    gpus = {}
    for line in cluster.run("scontrol", "-a", "-o", "show", "node").splitlines():
        row = _fields(line)
        gpus[row["NodeName"]] = sum(count for kind, _, count in gres_counts(row["Gres"]) if kind == "gpu")
    for record in cluster.run("scontrol", "show", "reservation").split("\n\n"):
        row = _fields(record)
        if "ReservationName" not in row:
            continue
        name = {"reservation": row["ReservationName"]}
        nodes = cluster.run("scontrol", "show", "hostnames", row["Nodes"]).split()
        texts = {
            "partition": row["PartitionName"],
            "users": row["Users"],
            "accounts": row["Accounts"],
            "flags": row["Flags"],
            "nodes": row["Nodes"],
        }
        found[series("reservation_info", **name, **texts)] = 1
        found[series("reservation_active", **name)] = int(row["State"] == "ACTIVE")
        found[series("reservation_start_timestamp_seconds", **name)] = int(row["StartTime"])
        found[series("reservation_end_timestamp_seconds", **name)] = int(row["EndTime"])
        found[series("reservation_nodes", **name)] = len(nodes)
        found[series("reservation_gpus", **name)] = sum(gpus[node] for node in nodes)
    return found


def _license_samples(cluster: SlurmCluster) -> Samples:
    found: Samples = {}
    for record in cluster.run("scontrol", "show", "licenses").split("LicenseName=")[1:]:
        row = _fields(record)
        name = record.split()[0]
        for metric, key in (("", "Total"), ("_used", "Used"), ("_reserved", "Reserved")):
            found[series(f"licenses{metric}", license=name)] = int(row[key])
    return found


def _share_samples(cluster: SlurmCluster) -> Samples:
    found: Samples = {}
    header, *lines = [line.split("|") for line in cluster.run("sshare", "-a", "-l", "-P").splitlines()] or [[]]
    for line in lines:
        row = dict(zip(header, (cell.strip() for cell in line), strict=True))
        names = {"account": row["Account"], "user": row["User"]}
        for metric, key in (
            ("fair_share_ratio", "FairShare"),
            ("shares_ratio", "NormShares"),
            ("usage_ratio", "EffectvUsage"),
            ("usage_seconds", "RawUsage"),
        ):
            if row[key]:
                found[series(metric, **names)] = float(row[key])
    return found


def sdiag_samples(text: str) -> Samples:
    """What that output of sdiag says."""
    found: Samples = {}
    parts = re.split(r"^(?=\S.*(?:stat(?:istic)?s|exit))", text, flags=re.M)

    def value(part: str, name: str) -> float | None:
        match = re.search(rf"^\s*{re.escape(name)}:\s*(\d+)$", part, re.M)
        return float(match[1]) if match else None

    def add(metric: str, number: float | None, **labels: str) -> None:
        if number is not None:
            found[series(metric, **labels)] = number

    add("server_threads", value(parts[0], "Server thread count"))
    add("agent_queue_size", value(parts[0], "Agent queue size"))
    add("dbd_agent_queue_size", value(parts[0], "DBD Agent queue size"))
    for event in ("submitted", "started", "completed", "canceled", "failed"):
        add("scheduler_jobs_total", value(parts[0], f"Jobs {event}"), event=event)
    for scheduler, title, depth in (
        ("main", "Main sched", "Mean depth cycle"),
        ("backfill", "Backfilling", "Depth Mean"),
    ):
        (part,) = (part for part in parts if part.startswith(title) and "exit" not in part.splitlines()[0])
        for metric, name in (("last", "Last cycle"), ("mean", "Mean cycle"), ("max", "Max cycle")):
            microseconds = value(part, name)
            seconds = None if microseconds is None else microseconds / 1e6
            add(f"scheduler_{metric}_cycle_seconds", seconds, scheduler=scheduler)
        add("scheduler_cycles_total", value(part, "Total cycles"), scheduler=scheduler)
        add("scheduler_queue_length", value(part, "Last queue length"), scheduler=scheduler)
        add("scheduler_depth_mean", value(part, depth), scheduler=scheduler)
        add("backfilled_jobs_total", value(part, "Total backfilled jobs (since last slurm start)"))
        for exits in parts:
            if re.match(rf"{scheduler}\w* exit", exits, re.I) or exits.startswith(f"{title}uler exit"):
                for reason, count in re.findall(r"^\t(.+): *(\d+)$", exits, re.M):
                    add("scheduler_exits_total", float(count), scheduler=scheduler, reason=reason)
    for name, _, count, microseconds in re.findall(
        r"^\t(\w+) +\( *(\d+)\) count:(\d+) +ave_time:\d+ +total_time:(\d+)$", text, re.M
    ):
        by_type = name.isupper()
        metric, label = ("rpc", {"type": name}) if by_type else ("user_rpc", {"user": name})
        add(f"{metric}s_total", float(count), **label)
        add(f"{metric}_seconds_total", int(microseconds) / 1e6, **label)
    return found
