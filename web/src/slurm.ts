// Slurm as the views show it, sorted out of one answer of the query API. No DOM. What Slurm does not tell is undefined.
import type { InstantSample } from "./api";
import { groupBy } from "./fleet";
import { naturalOrder } from "./format";
import type { LiveGpu, LivePicture, LiveSession } from "./live";

export const SLURM_QUERY =
  '{__name__=~"gpuscope_slurm_(up|version_info|query_last_success_timestamp_seconds|jobs|jobs_without_series|job_.+|pending_job_.+|node_(state|flag|reason_.+|gpus|partition_info)|partition_.+|reservation_.+)"}';

export interface SlurmJob {
  job: string;
  array: string;
  name: string;
  user: string;
  account: string;
  partition: string;
  gpus: number | undefined;
  startedAt: number | undefined;
  endsAt: number | undefined;
  /** Keeps its GPUs and does not run. */
  suspended: boolean;
  nodes: string[];
  /** Processes of the job that are on GPUs now. */
  sessions: LiveSession[];
  /** Utilisation of each GPU that it is on, lowest first. */
  busy: number[];
  /** GPUs that are known to be given to it and on which it has no process now. */
  unused: number;
}
export interface SlurmNode {
  node: string;
  state: string;
  flags: string[];
  reason: string;
  by: string;
  reasonAt: number | undefined;
  partitions: string[];
  gpus: Record<string, number>;
}
export interface SlurmPartition {
  partition: string;
  jobs: Record<string, number>;
  gpus: Record<string, number>;
  requested: number | undefined;
  oldest: number | undefined;
}
export interface QueueRow {
  partition: string;
  reason: string;
  jobs: number;
  requested: number | undefined;
  oldest: number | undefined;
  /** How many have been eligible for how long: upper bounds in seconds and cumulative counts. */
  waiting: { within: number; count: number }[];
}
/** A job that waits; those that have waited longest have series of their own. */
export interface PendingJob {
  job: string;
  name: string;
  user: string;
  account: string;
  partition: string;
  reason: string;
  gpus: number | undefined;
  /** Tasks of an array that wait. */
  tasks: number | undefined;
  eligibleAt: number | undefined;
}
export interface Reservation {
  name: string;
  partition: string;
  users: string;
  accounts: string;
  flags: string;
  nodes: string;
  active: boolean;
  start: number | undefined;
  end: number | undefined;
  gpus: number | undefined;
}
export interface Slurm {
  up: boolean;
  version: string;
  readAt: number | undefined;
  jobStates: Record<string, number>;
  withoutSeries: number;
  jobs: SlurmJob[];
  nodes: SlurmNode[];
  partitions: SlurmPartition[];
  queue: QueueRow[];
  pending: PendingJob[];
  reservations: Reservation[];
}

type Samples = Map<string, InstantSample[]>;
const text = (sample: InstantSample | undefined, label: string): string => sample?.metric[label] ?? "";
const number = (sample: InstantSample | undefined): number | undefined => {
  const value = Number(sample?.value[1]);
  return sample && Number.isFinite(value) ? value : undefined;
};

/** Undefined where no agent reads Slurm. */
export function sortSlurm(answer: readonly InstantSample[], picture: LivePicture): Slurm | undefined {
  const byName: Samples = groupBy(answer, (one) => (one.metric["__name__"] ?? "").replace("gpuscope_slurm_", ""));
  const of = (name: string): InstantSample[] => byName.get(name) ?? [];
  if (!of("up").length) return undefined;
  const read = of("query_last_success_timestamp_seconds")
    .map(number)
    .filter((at) => at !== undefined);
  return {
    up: of("up").some((one) => number(one) === 1),
    version: text(of("version_info")[0], "version"),
    readAt: read.length ? Math.max(...read) : undefined,
    jobStates: counts(of("jobs"), "state"),
    withoutSeries: number(of("jobs_without_series")[0]) ?? 0,
    jobs: jobsOf(byName, picture),
    nodes: nodesOf(byName),
    partitions: partitionsOf(byName),
    queue: queueOf(byName),
    pending: pendingOf(byName),
    reservations: reservationsOf(byName),
  };
}

function counts(samples: readonly InstantSample[], label: string): Record<string, number> {
  const found: Record<string, number> = {};
  for (const one of samples) found[text(one, label)] = (found[text(one, label)] ?? 0) + (number(one) ?? 0);
  return found;
}

const index = (samples: readonly InstantSample[], label: string): Map<string, InstantSample> =>
  new Map(samples.map((one) => [text(one, label), one]));

function jobsOf(byName: Samples, picture: LivePicture): SlurmJob[] {
  const of = (name: string): Map<string, InstantSample> => index(byName.get(name) ?? [], "slurm_job");
  const [gpus, starts, ends] = [of("job_gpus"), of("job_start_timestamp_seconds"), of("job_end_timestamp_seconds")];
  const suspended = of("job_suspended");
  const nodes = groupBy(byName.get("job_node_info") ?? [], (one) => text(one, "slurm_job"));
  const sessions = groupBy(
    picture.sessions.filter((one) => one.job),
    (one) => one.job ?? "",
  );
  const cards = new Map(picture.gpus.map((gpu) => [gpu.uuid, gpu]));
  // Allocated by Slurm, whether or not a process is on it.
  const held = new Map<string, string[]>();
  for (const gpu of picture.gpus) for (const job of gpu.jobs ?? []) held.set(job, [...(held.get(job) ?? []), gpu.uuid]);
  return [...of("job_info")].map(([job, info]) => {
    const own = sessions.get(job) ?? [];
    const used = new Set(own.map((one) => one.uuid));
    const uuids = new Set([...used, ...(held.get(job) ?? [])]);
    const busy = [...uuids]
      .map((uuid) => cards.get(uuid)?.busy ?? cards.get(uuid)?.sm)
      .filter((one): one is number => one !== undefined)
      .sort((a, b) => a - b);
    const [array, task] = [text(info, "array_job"), text(info, "array_task")];
    return {
      job,
      array: array && task ? `${array}_${task}` : "",
      name: text(info, "name"),
      user: text(info, "user"),
      account: text(info, "account"),
      partition: text(info, "partition"),
      gpus: number(gpus.get(job)),
      startedAt: number(starts.get(job)),
      endsAt: number(ends.get(job)),
      suspended: number(suspended.get(job)) === 1,
      nodes: (nodes.get(job) ?? []).map((one) => text(one, "node")).sort(naturalOrder),
      sessions: own,
      busy,
      unused: [...uuids].filter((uuid) => !used.has(uuid) && isRead(cards.get(uuid))).length,
    };
  });
}

/** Of a GPU that is not read nobody knows what is on it. */
const isRead = (gpu: LiveGpu | undefined): boolean =>
  gpu !== undefined && !["lost", "gone", "stale"].includes(gpu.state);

function pendingOf(byName: Samples): PendingJob[] {
  const of = (name: string): Map<string, InstantSample> => index(byName.get(name) ?? [], "slurm_job");
  const [gpus, tasks, times] = [
    of("pending_job_gpus"),
    of("pending_job_tasks"),
    of("pending_job_eligible_timestamp_seconds"),
  ];
  return [...of("pending_job_info")].map(([job, info]) => ({
    job,
    name: text(info, "name"),
    user: text(info, "user"),
    account: text(info, "account"),
    partition: text(info, "partition"),
    reason: text(info, "reason"),
    gpus: number(gpus.get(job)),
    tasks: number(tasks.get(job)),
    eligibleAt: number(times.get(job)),
  }));
}

function nodesOf(byName: Samples): SlurmNode[] {
  const states = (byName.get("node_state") ?? []).filter((one) => number(one) === 1);
  const flags = groupBy(
    (byName.get("node_flag") ?? []).filter((one) => number(one) === 1),
    (one) => text(one, "node"),
  );
  const reasons = index(byName.get("node_reason_info") ?? [], "node");
  const times = index(byName.get("node_reason_timestamp_seconds") ?? [], "node");
  const partitions = groupBy(byName.get("node_partition_info") ?? [], (one) => text(one, "node"));
  const gpus = groupBy(
    (byName.get("node_gpus") ?? []).filter((one) => text(one, "gres") === "gpu"),
    (one) => text(one, "node"),
  );
  return states
    .map((one) => {
      const node = text(one, "node");
      return {
        node,
        state: text(one, "state"),
        flags: (flags.get(node) ?? []).map((flag) => text(flag, "flag")).sort(),
        reason: text(reasons.get(node), "reason"),
        by: text(reasons.get(node), "by"),
        reasonAt: number(times.get(node)),
        partitions: (partitions.get(node) ?? []).map((row) => text(row, "partition")).sort(),
        gpus: counts(gpus.get(node) ?? [], "state"),
      };
    })
    .sort(
      (left, right) =>
        Number(needsSomebody(right)) - Number(needsSomebody(left)) || naturalOrder(left.node, right.node),
    );
}

/** Down or not answering: something is broken. */
export const isBroken = (node: SlurmNode): boolean =>
  node.flags.includes("not_responding") || /^(down|error|fail)/.test(node.state);

/** Drained or down: its GPUs are lost to everybody until somebody acts. */
export const needsSomebody = (node: SlurmNode): boolean => node.flags.includes("drain") || isBroken(node);

function partitionsOf(byName: Samples): SlurmPartition[] {
  const of = (name: string): Map<string, InstantSample[]> =>
    groupBy(byName.get(name) ?? [], (one) => text(one, "partition"));
  const [jobs, gpus, requested, oldest] = [
    of("partition_jobs"),
    of("partition_gpus"),
    of("partition_gpus_requested"),
    of("partition_oldest_pending_seconds"),
  ];
  const names = new Set([...jobs.keys(), ...gpus.keys(), ...of("node_partition_info").keys()]);
  return [...names].sort(naturalOrder).map((partition) => ({
    partition,
    jobs: counts(jobs.get(partition) ?? [], "state"),
    gpus: counts(
      (gpus.get(partition) ?? []).filter((one) => text(one, "gres") === "gpu"),
      "state",
    ),
    requested: sum((requested.get(partition) ?? []).map(number)),
    oldest: number(oldest.get(partition)?.[0]),
  }));
}

const sum = (values: readonly (number | undefined)[]): number | undefined => {
  const known = values.filter((one): one is number => one !== undefined);
  return known.length ? known.reduce((total, one) => total + one, 0) : undefined;
};

function queueOf(byName: Samples): QueueRow[] {
  const parts = new Map(partitionsOf(byName).map((one) => [one.partition, one]));
  const waiting = groupBy(byName.get("partition_jobs_waiting") ?? [], (one) => text(one, "partition"));
  return (byName.get("partition_jobs_pending") ?? [])
    .map((one) => {
      const partition = text(one, "partition");
      return {
        partition,
        reason: text(one, "reason"),
        jobs: number(one) ?? 0,
        requested: parts.get(partition)?.requested,
        oldest: parts.get(partition)?.oldest,
        waiting: (waiting.get(partition) ?? [])
          .map((row) => ({ within: Number(text(row, "within").replace("+Inf", "Infinity")), count: number(row) ?? 0 }))
          .sort((left, right) => left.within - right.within),
      };
    })
    .filter((row) => row.jobs > 0)
    .sort((left, right) => right.jobs - left.jobs);
}

function reservationsOf(byName: Samples): Reservation[] {
  const of = (name: string): Map<string, InstantSample> => index(byName.get(name) ?? [], "reservation");
  const [active, starts, ends, gpus] = [
    of("reservation_active"),
    of("reservation_start_timestamp_seconds"),
    of("reservation_end_timestamp_seconds"),
    of("reservation_gpus"),
  ];
  return [...of("reservation_info")]
    .map(([name, info]) => ({
      name,
      partition: text(info, "partition"),
      users: text(info, "users"),
      accounts: text(info, "accounts"),
      flags: text(info, "flags"),
      nodes: text(info, "nodes"),
      active: number(active.get(name)) === 1,
      start: number(starts.get(name)),
      end: number(ends.get(name)),
      gpus: number(gpus.get(name)),
    }))
    .sort((left, right) => (left.start ?? 0) - (right.start ?? 0));
}
