// What changed between a time range and the one before it: numbers of GPUs, processes that came and went, events. In:
// answers of the query API at both ends. Out: rows, the largest change first. No DOM.
import type { InstantSample } from "./api";
import type { Unit } from "./format";
import { naturalOrder } from "./format";

export interface WatchedMetric {
  metric: string;
  unit: Unit;
  /** A change of this size is as large as a change can be: shares of different units can be ranked together. */
  full: number;
}

export const WATCHED: readonly WatchedMetric[] = [
  { metric: "gpuscope_gpu_utilization_ratio", unit: "ratio", full: 1 },
  { metric: "gpuscope_gpu_sm_active_ratio", unit: "ratio", full: 1 },
  { metric: "gpuscope_gpu_tensor_active_ratio", unit: "ratio", full: 1 },
  { metric: "gpuscope_gpu_dram_active_ratio", unit: "ratio", full: 1 },
  { metric: "gpuscope_gpu_memory_used_bytes", unit: "bytes", full: 80 * 2 ** 30 },
  { metric: "gpuscope_gpu_power_watts", unit: "watts", full: 700 },
  { metric: 'gpuscope_gpu_temperature_celsius{sensor="gpu"}', unit: "celsius", full: 60 },
  { metric: "gpuscope_node_cpu_utilization_ratio", unit: "ratio", full: 1 },
];

export const averageQuery = (metric: string, seconds: number, offset: number): string =>
  `avg_over_time(${metric}[${Math.round(seconds)}s]${offset ? ` offset ${Math.round(offset)}s` : ""})`;

export interface ChangeRow {
  key: string;
  instance: string;
  gpu: string;
  uuid: string;
  metric: string;
  unit: Unit;
  before: number;
  during: number;
  /** 0 to 1. */
  size: number;
}

const keyOf = (metric: Readonly<Record<string, string>>): string =>
  `${metric["instance"] ?? ""}/${metric["uuid"] ?? ""}`;

/** A number that is known on one side only is no change of it. */
export function changeRows(
  watched: WatchedMetric,
  during: readonly InstantSample[],
  before: readonly InstantSample[],
): ChangeRow[] {
  const old = new Map(before.map((one) => [keyOf(one.metric), Number(one.value[1])]));
  return during.flatMap(({ metric, value }) => {
    const earlier = old.get(keyOf(metric));
    const now = Number(value[1]);
    if (earlier === undefined || !Number.isFinite(now) || !Number.isFinite(earlier)) return [];
    const size = Math.min(Math.abs(now - earlier) / watched.full, 1);
    const name = watched.metric.replace(/\{.*/, "");
    return [
      {
        key: `${keyOf(metric)}/${name}`,
        instance: metric["instance"] ?? "",
        gpu: metric["gpu"] ?? "",
        uuid: metric["uuid"] ?? "",
        metric: name,
        unit: watched.unit,
        before: earlier,
        during: now,
        size,
      },
    ];
  });
}

export const LEAST_CHANGE = 0.05;

export const largestFirst = (rows: readonly ChangeRow[]): ChangeRow[] =>
  rows
    .filter((row) => row.size >= LEAST_CHANGE)
    .sort((left, right) => right.size - left.size || naturalOrder(left.key, right.key));

export interface Guest {
  key: string;
  what: "came" | "went";
  instance: string;
  gpu: string;
  who: string;
  command: string;
  pid: string;
}

/** Processes that are on a GPU at the end and were not at the start, and the other way round. */
export function guests(start: readonly InstantSample[], end: readonly InstantSample[]): Guest[] {
  const key = ({ metric }: InstantSample): string => `${metric["instance"]}/${metric["uuid"]}/${metric["pid"]}`;
  const [before, after] = [new Set(start.map(key)), new Set(end.map(key))];
  const row = (one: InstantSample, what: Guest["what"]): Guest => {
    const { metric } = one;
    const pod = metric["pod"] ? [metric["namespace"], metric["pod"]].filter(Boolean).join("/") : "";
    const job = metric["slurm_job"] ? `job ${metric["slurm_job"]}` : "";
    return {
      key: `${what}${key(one)}`,
      what,
      instance: metric["instance"] ?? "",
      gpu: metric["gpu"] ?? "",
      who: pod || [metric["user"], job].filter(Boolean).join(" · "),
      command: metric["command"] ?? "",
      pid: metric["pid"] ?? "",
    };
  };
  return [
    ...end.filter((one) => !before.has(key(one))).map((one) => row(one, "came")),
    ...start.filter((one) => !after.has(key(one))).map((one) => row(one, "went")),
  ];
}
