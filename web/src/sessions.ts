// Sessions as rows: filtered, sorted, grouped, exported. A session is one process on one GPU; the same process on eight
// GPUs is eight rows and one group.
import { csvText } from "./csv";
import { groupBy, toWords } from "./fleet";
import { naturalOrder } from "./format";
import type { GpuState, LiveGpu, LiveSession } from "./live";
import { sortByValue, type SortValue } from "./sorting";

export const GROUPINGS = ["none", "user", "pod", "container", "job", "node"] as const;
export type Grouping = (typeof GROUPINGS)[number];
export const COLUMNS = [
  "node",
  "gpu",
  "user",
  "owner",
  "command",
  "pid",
  "memory",
  "sm",
  "hour",
  "since",
  "state",
] as const;
export type ColumnName = (typeof COLUMNS)[number];

export interface Row extends LiveSession {
  /** Share of the last hour in which it worked, where history knows. */
  hour?: number;
  /** Of its GPU or MIG instance. */
  gpuState?: GpuState;
}

export const ownerOf = (session: LiveSession): string =>
  [session.namespace, session.pod, session.container].filter(Boolean).join("/") ||
  (session.job ? `job ${session.job}` : "");

// Sum over count, not an average of averages: history of older versions has a label `state` that cuts a process into
// several series, and each piece must weigh as much as it has samples.
const HOUR = "gpuscope_process_sm_ratio[1h]";
export const HOUR_QUERY = `sum by (uuid, pid) (sum_over_time(${HOUR})) / sum by (uuid, pid) (count_over_time(${HOUR}))`;

const keyOf = (session: LiveSession): string => `${session.uuid}/${session.pid ?? ""}`;

export function toRows(
  sessions: readonly LiveSession[],
  gpus: readonly LiveGpu[],
  hours: ReadonlyMap<string, number>,
): Row[] {
  const states = new Map(gpus.map((gpu) => [gpu.uuid, gpu.state]));
  return sessions.map((session) => {
    const [hour, gpuState] = [hours.get(keyOf(session)), states.get(session.uuid)];
    return { ...session, ...(hour === undefined ? {} : { hour }), ...(gpuState ? { gpuState } : {}) };
  });
}

export function filterSessions(rows: readonly Row[], search: string): Row[] {
  const words = toWords(search);
  if (!words.length) return [...rows];
  return rows.filter((row) => {
    const text = [
      row.node,
      `gpu${row.gpu}`,
      row.user,
      row.namespace,
      row.pod,
      row.container,
      row.job,
      row.command,
      row.pid,
      row.state,
    ]
      .filter((word) => word !== undefined)
      .join("\n")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

export function sortSessions(rows: readonly Row[], column: ColumnName, down: boolean): Row[] {
  const value = (row: Row): SortValue => (column === "owner" ? ownerOf(row) || undefined : row[column]);
  return sortByValue(rows, value, down);
}

export interface SessionGroup {
  name: string;
  rows: Row[];
  gpus: number;
  /** GPUs of the group on which it works. */
  working: number;
  /** GPUs of the group whose state is `held`, by the server: as the fleet counts them. */
  held: number;
  memory: number | undefined;
}

export function groupSessions(rows: readonly Row[], by: Grouping): SessionGroup[] {
  if (by === "none") return [toGroup("", [...rows])];
  return [...groupBy(rows, (row) => nameIn(row, by))]
    .map(([name, members]) => toGroup(name, members))
    .sort((left, right) => right.gpus - left.gpus || naturalOrder(left.name, right.name));
}

function nameIn(row: Row, by: Exclude<Grouping, "none">): string {
  if (by === "pod") return [row.namespace, row.pod].filter(Boolean).join("/");
  return row[by] ?? "";
}

function toGroup(name: string, rows: Row[]): SessionGroup {
  const gpus = [...groupBy(rows, (row) => row.uuid).values()];
  const memory = rows.map((row) => row.memory).filter((one): one is number => one !== undefined);
  return {
    name,
    rows,
    gpus: gpus.length,
    working: gpus.filter((members) => members.some((row) => row.state === "active")).length,
    held: gpus.filter((members) => members[0]?.gpuState === "held").length,
    memory: memory.length ? memory.reduce((sum, one) => sum + one, 0) : undefined,
  };
}

const EXPORTED = [
  "node",
  "gpu",
  "uuid",
  "user",
  "namespace",
  "pod",
  "container",
  "job",
  "command",
  "pid",
  "type",
  "memory",
  "sm",
  "hour",
  "since",
  "state",
] as const;
const UNITS: Partial<Record<(typeof EXPORTED)[number], string>> = {
  memory: "memory_bytes",
  sm: "sm_ratio",
  hour: "sm_ratio_last_hour",
  since: "since_seconds",
};

export function toCsv(rows: readonly Row[]): string {
  return csvText(
    EXPORTED.map((name) => UNITS[name] ?? name),
    rows.map((row) => EXPORTED.map((name) => row[name])),
  );
}

export const toJson = (rows: readonly Row[]): string =>
  JSON.stringify(
    rows.map((row) =>
      Object.fromEntries(
        EXPORTED.filter((name) => row[name] !== undefined).map((name) => [UNITS[name] ?? name, row[name]]),
      ),
    ),
    null,
    2,
  );

/** The most rows that each of some groups may have so that all together have at most `most`: a small group keeps all of its own. */
export function roomForEach(sizes: readonly number[], most: number): number {
  const sorted = [...sizes].sort((a, b) => a - b);
  let left = most;
  for (const [place, size] of sorted.entries()) {
    const each = Math.floor(left / (sorted.length - place));
    if (size > each) return each;
    left -= size;
  }
  return sorted.at(-1) ?? 0;
}
