// Applies the events of `api/live/stream` to the picture. In: the picture of the event before, and a difference. Out: a
// new picture; rows that did not change are the same objects. A number that is absent has no key and stays without one.
import type { ColumnDeltas, LiveDifference, LivePicture, StreamColumns, StreamPicture } from "./api-types";

interface Changes {
  removed?: number[];
  added?: { at: number; row: object }[];
  replaced?: { at: number; row: object }[];
  numbers?: Record<string, ColumnDeltas>;
}
type Row = Record<string, number | undefined>;

const FAR = "~".charCodeAt(0);
const BACKSLASH = "\\".charCodeAt(0);
const ZERO = "O".charCodeAt(0);

/** How many steps a character means; the backslash, which JSON would escape, is left out of the row. */
const stepsOf = (code: number): number => code - ZERO - (code > BACKSLASH ? 1 : 0);

export function applyDifference(columns: StreamColumns, old: LivePicture, change: LiveDifference): LivePicture {
  return {
    ...old,
    now: change.now,
    ...(change.taken_at === undefined ? {} : { taken_at: change.taken_at }),
    ...(change.counts ? { counts: change.counts } : {}),
    ...(change.left_out === undefined ? {} : { left_out: change.left_out }),
    ...(change.not_known === undefined ? {} : { not_known: change.not_known }),
    ...(change.targets ? { targets: change.targets } : {}),
    nodes: applyChanges(old.nodes, change.nodes, columns.nodes),
    gpus: applyChanges(old.gpus, change.gpus, columns.gpus),
    sessions: applyChanges(old.sessions, change.sessions, columns.sessions),
    jobs: applyChanges(old.jobs, change.jobs, {}),
    findings: applyChanges(old.findings, change.findings, {}),
  };
}

export function applyChanges<T extends object>(
  old: T[],
  changes: Changes | undefined,
  perUnit: Readonly<Record<string, number>>,
): T[] {
  if (!changes) return old;
  const gone = new Set(changes.removed);
  const rows = gone.size ? old.filter((_, at) => !gone.has(at)) : [...old];
  // One pass rather than a splice for each: a node that comes back adds many rows.
  const added = changes.added ?? [];
  const next: T[] = added.length ? mergeRows(rows, added as { at: number; row: T }[]) : rows;
  for (const { at, row } of changes.replaced ?? []) next[at] = row as T;
  const fresh = new Set<number>();
  for (const [name, deltas] of Object.entries(changes.numbers ?? {})) {
    applyColumn(next as unknown as Row[], name, deltas, perUnit[name] ?? 1, fresh);
  }
  return next;
}

function mergeRows<T>(rows: readonly T[], added: readonly { at: number; row: T }[]): T[] {
  const merged: T[] = [];
  let from = 0;
  for (const { at, row } of added) {
    while (merged.length < at && from < rows.length) merged.push(rows[from++] as T);
    merged.push(row);
  }
  while (from < rows.length) merged.push(rows[from++] as T);
  return merged;
}

/** `fresh` has the places whose row is already a copy of its own: a row is copied once, however many numbers change. */
function applyColumn(rows: Row[], name: string, deltas: ColumnDeltas, perUnit: number, fresh: Set<number>): void {
  const { steps, far = [] } = deltas;
  let nextFar = 0;
  for (let at = 0; at < steps.length; at += 1) {
    const code = steps.charCodeAt(at);
    if (code === ZERO) continue;
    let row = rows[at];
    if (!row) continue;
    if (!fresh.has(at)) {
      row = rows[at] = { ...row };
      fresh.add(at);
    }
    if (code !== FAR) {
      row[name] = (Math.round((row[name] ?? 0) * perUnit) + stepsOf(code)) / perUnit;
      continue;
    }
    const value = far[nextFar++];
    if (value === null || value === undefined) delete row[name];
    else row[name] = value / perUnit;
  }
}

/** Events of a stream as they arrive in pieces of text: name, id and data of each complete one. */
export interface StreamEvent {
  name: string;
  id: string;
  data: string;
}

export class EventReader {
  private rest = "";

  read(piece: string): StreamEvent[] {
    const parts = (this.rest + piece).split("\n\n");
    this.rest = parts.pop() ?? "";
    return parts.map(toEvent).filter((event) => event.data !== "");
  }
}

function toEvent(text: string): StreamEvent {
  const event: StreamEvent = { name: "message", id: "", data: "" };
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (colon <= 0) continue;
    const field = line.slice(0, colon);
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") event.data += (event.data ? "\n" : "") + value;
  }
  return event;
}

export type { LiveDifference, StreamPicture };
