// The live picture arranged for the views: cells, totals, spreads, holders; no DOM, and no judgement: states and
// findings are the server's. Every list is in a stable order, so that the page does not jump from second to second.
import { GPU_STATES } from "./api-types";
import { naturalOrder } from "./format";
import type { Gone, GpuState, LiveGpu, LivePicture, LiveSession } from "./live";

export const MEASURES = ["busy", "memory", "power", "temperature", "holder"] as const;
export type Measure = (typeof MEASURES)[number];
export const STATES: readonly GpuState[] = GPU_STATES;
/** The ends of the scale of the temperature measure. */
const HOT_CELSIUS = 95;
const COOL_CELSIUS = 25;

export interface Cell {
  gpu: LiveGpu;
  sessions: LiveSession[];
  parts: Cell[];
}
export interface NodeCells {
  name: string;
  cells: Cell[];
  gone?: Gone;
  /** Not a node, but cells of several that have something in common. */
  isGroup?: boolean;
}

export function arrange(picture: LivePicture): NodeCells[] {
  const sessions = groupBy(picture.sessions, (session) => session.uuid);
  const parts = groupBy(
    picture.gpus.filter((gpu) => gpu.parent),
    (gpu) => gpu.parent ?? "",
  );
  const known = new Set(picture.gpus.map((gpu) => gpu.uuid));
  const toCell = (gpu: LiveGpu): Cell => ({
    gpu,
    sessions: sessions.get(gpu.uuid) ?? [],
    parts: (parts.get(gpu.uuid) ?? []).sort(byIndex).map(toCell),
  });
  // An instance whose board is not in the picture stands for itself rather than vanish.
  const tops = picture.gpus.filter((gpu) => !gpu.parent || !known.has(gpu.parent));
  const byNode = groupBy(tops, (gpu) => gpu.node);
  const names = new Set([...picture.nodes.map((node) => node.name), ...byNode.keys()]);
  const gone = new Map(picture.nodes.map((node) => [node.name, node.gone]));
  return [...names].sort(naturalOrder).map((name) => {
    const since = gone.get(name);
    return { name, cells: (byNode.get(name) ?? []).sort(byIndex).map(toCell), ...(since ? { gone: since } : {}) };
  });
}

const byIndex = (left: LiveGpu, right: LiveGpu): number => naturalOrder(left.gpu, right.gpu);

export function groupBy<T>(items: Iterable<T>, key: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const name = key(item);
    const group = groups.get(name);
    if (group) group.push(item);
    else groups.set(name, [item]);
  }
  return groups;
}

/** The units that the page counts and colours: a GPU that is not split, or each MIG instance of one that is. */
export const leaves = (cells: readonly Cell[]): Cell[] =>
  cells.flatMap((cell) => (cell.parts.length ? cell.parts : [cell]));

/** Numbers of a GPU that is gone or old say nothing about now: they are in no sum and no spread. */
const isCurrent = (cell: Cell): boolean => !OUT_OF_SIGHT.has(cell.gpu.state);
const OUT_OF_SIGHT: ReadonlySet<GpuState> = new Set(["lost", "gone", "stale"]);

/** Busy share; a MIG instance has no utilisation of its own, its SM activity is the nearest there is. */
export const busyOf = (gpu: LiveGpu): number | undefined => gpu.busy ?? gpu.sm;

const podName = (pod: string): string => pod.slice(pod.indexOf("/") + 1);

export function holdersOf(cell: Cell): string[] {
  const { users, jobs = [], pods = [] } = cell.gpu;
  // One user without a pod: nearly every GPU, so it comes first and cheap.
  if (users.length === 1 && !cell.parts.length && cell.sessions.every((one) => !one.pod && one.user === users[0]))
    return users;
  const names = new Set<string>(cell.sessions.length ? [] : users);
  for (const session of cell.sessions) {
    // The user inside a container is often the same for everybody: the pod's name says who it is.
    const name = session.pod || session.user || session.job;
    if (name) names.add(name);
  }
  // Given by a scheduler, and no process says by whom it is used.
  if (!names.size) for (const name of [...jobs.map((job) => `job ${job}`), ...pods.map(podName)]) names.add(name);
  for (const part of cell.parts) for (const name of holdersOf(part)) names.add(name);
  return [...names].sort(naturalOrder);
}

/** How full a cell is drawn, 0 to 1; undefined is drawn as absent, not as empty. */
export function levelOf(gpu: LiveGpu, measure: Measure): number | undefined {
  switch (measure) {
    case "busy":
    case "holder":
      return busyOf(gpu);
    case "memory":
      return share(gpu.memory_used, gpu.memory_total);
    case "power":
      return share(gpu.power, gpu.power_limit);
    case "temperature":
      return gpu.temperature === undefined
        ? undefined
        : Math.min(Math.max((gpu.temperature - COOL_CELSIUS) / (HOT_CELSIUS - COOL_CELSIUS), 0), 1);
  }
}

const share = (part: number | undefined, whole: number | undefined): number | undefined =>
  part === undefined || !whole ? undefined : Math.min(part / whole, 1);

export interface Power {
  watts: number | undefined;
  /** Of how many GPUs the power is known; the rest is not in the sum. */
  of: number;
}

/** What is counted is the server's: `LivePicture.counts`. A sum of what the driver measures is the page's. */
export function powerOf(nodes: readonly NodeCells[]): Power {
  const watts = nodes
    .flatMap((node) => node.cells)
    .filter(isCurrent)
    .map((cell) => cell.gpu.power)
    .filter((one): one is number => one !== undefined);
  return { watts: watts.length ? watts.reduce((sum, one) => sum + one, 0) : undefined, of: watts.length };
}

export interface Spread {
  values: number[];
  min: number;
  median: number;
  max: number;
}

/** Never an average alone: one busy GPU and seven idle ones are not "12 %". */
export function spreadOf(cells: readonly Cell[]): Spread | undefined {
  const values = leaves(cells)
    .filter(isCurrent)
    .map((cell) => busyOf(cell.gpu))
    .filter((value): value is number => value !== undefined)
    .sort((a, b) => a - b);
  if (!values.length) return undefined;
  const middle = (values.length - 1) / 2;
  const median = ((values[Math.floor(middle)] ?? 0) + (values[Math.ceil(middle)] ?? 0)) / 2;
  return { values, min: values[0] ?? 0, median, max: values[values.length - 1] ?? 0 };
}

/** What a search looks at: everything a person may know a GPU by. */
export function searchText(cell: Cell): string {
  const { gpu } = cell;
  const words = [gpu.node, `gpu${gpu.gpu}`, gpu.model, gpu.profile, gpu.uuid, gpu.state, gpu.why, ...gpu.users];
  words.push(...(gpu.jobs ?? []).map((job) => `job ${job}`), ...(gpu.pods ?? []));
  for (const one of cell.sessions) {
    words.push(one.user, one.namespace, one.pod, one.container, one.job, one.command, String(one.pid));
  }
  return words.filter(Boolean).join("\n").toLowerCase();
}

export function matches(cell: Cell, words: readonly string[], states: readonly string[]): boolean {
  const own = (!states.length || states.includes(cell.gpu.state)) && (!words.length || hasAll(searchText(cell), words));
  return own || cell.parts.some((part) => matches(part, words, states));
}

const hasAll = (text: string, words: readonly string[]): boolean => words.every((word) => text.includes(word));

export const toWords = (search: string): string[] => search.toLowerCase().split(/\s+/).filter(Boolean);

export interface Holders {
  /** The largest holders first, each with how many GPUs or instances it has and which of the colours. */
  shown: { name: string; count: number; colour: number }[];
  others: number;
  colours: ReadonlyMap<string, number>;
}
const HOLDER_COLOURS = 8;

/** Colours for the largest holders; who had one keeps it, so that the map does not change its colours every second. */
export function colourHolders(nodes: readonly NodeCells[], before: ReadonlyMap<string, number> = new Map()): Holders {
  const counts = new Map<string, number>();
  for (const cell of leaves(nodes.flatMap((node) => node.cells))) {
    const name = holdersOf(cell).join(", ");
    if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  // Who shares a GPU comes after who has one alone: a colour for each mixture of four pods tells nothing.
  const sorted = [...counts].sort(
    ([left, many], [right, more]) =>
      Number(left.includes(", ")) - Number(right.includes(", ")) || more - many || naturalOrder(left, right),
  );
  const largest = sorted.slice(0, HOLDER_COLOURS);
  const colours = new Map<string, number>();
  for (const [name] of largest) {
    const old = before.get(name);
    if (old) colours.set(name, old);
  }
  const taken = new Set(colours.values());
  const free = Array.from({ length: HOLDER_COLOURS }, (_, at) => at + 1).filter((one) => !taken.has(one));
  for (const [name] of largest) if (!colours.has(name)) colours.set(name, free.shift() ?? 0);
  return {
    shown: largest.map(([name, count]) => ({ name, count, colour: colours.get(name) ?? 0 })),
    others: sorted.length - largest.length,
    colours,
  };
}
