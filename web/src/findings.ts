// What needs somebody to act: each finding names where, who, since when, and which next step applies. GPUs of one node
// with the same trouble and the same holder are one finding, or a held node would fill the list.
import { arrange, findLopsided, groupBy, holdersOf, leaves } from "./fleet";
import type { Cell, NodeCells } from "./fleet";
import type { Gone, LivePicture } from "./live";

export type FindingKind =
  | "lost"
  | "missing"
  | "node_gone"
  | "node_never"
  | "target_gone"
  | "node_stale"
  | "source_down"
  | "sick"
  | "throttled"
  | "lopsided"
  | "held";

export interface Finding {
  kind: FindingKind;
  node: string;
  /** Indices as nvidia-smi gives them. */
  gpus: string[];
  uuids: string[];
  who: string[];
  why: string;
  since?: number;
  /** For `missing`: how many; for `lopsided`: how many do nothing. */
  count: number;
}

const ORDER: readonly FindingKind[] = [
  "lost",
  "node_gone",
  "node_never",
  "missing",
  "target_gone",
  "node_stale",
  "source_down",
  "sick",
  "throttled",
  "lopsided",
  "held",
];
export const SEVERE: ReadonlySet<FindingKind> = new Set(["lost", "missing", "node_gone", "sick"]);

export function findFindings(picture: LivePicture, nodes: readonly NodeCells[] = arrange(picture)): Finding[] {
  const found: Finding[] = [];
  for (const node of picture.nodes) {
    if (node.gone) {
      found.push(toGone(node.gone.answered ? "node_gone" : "node_never", node.name, node.gone));
      continue;
    }
    const missing = (node.gpus_expected ?? 0) - (node.gpus_seen ?? node.gpus_expected ?? 0);
    if (missing > 0) found.push(plain("missing", node.name, missing));
    if (node.stale) found.push({ ...plain("node_stale", node.name, 1), ...sinceOf(node.taken_at) });
    const unread = picture.gpus.find((gpu) => gpu.node === node.name && gpu.state === "stale")?.since;
    for (const source of node.sources ?? []) {
      if (!source.up) found.push({ ...plain("source_down", node.name, 1), why: source.name, ...sinceOf(unread) });
    }
  }
  // A target that is a node has been told already.
  const told = new Set(picture.nodes.filter((node) => node.gone).map((node) => node.instance));
  for (const target of picture.targets ?? [])
    if (!told.has(target.instance)) found.push(toGone("target_gone", target.instance, target));
  for (const { name, cells } of nodes) found.push(...findInNode(name, cells));
  return found.sort((left, right) => ORDER.indexOf(left.kind) - ORDER.indexOf(right.kind));
}

const plain = (kind: FindingKind, node: string, count: number): Finding => ({
  kind,
  node,
  gpus: [],
  uuids: [],
  who: [],
  why: "",
  count,
});

const toGone = (kind: FindingKind, name: string, gone: Gone): Finding => ({
  ...plain(kind, name, 1),
  why: gone.why,
  since: gone.since,
});

const sinceOf = (since: number | undefined): { since?: number } => (since === undefined ? {} : { since });

function findInNode(node: string, cells: readonly Cell[]): Finding[] {
  const found: Finding[] = [];
  // A board that is lost or hot says so itself, with or without instances.
  const every = [...new Set([...leaves(cells), ...cells])];
  for (const kind of ["lost", "sick", "throttled", "held"] as const) {
    const lopsided = kind === "held" ? findLopsided(cells) : undefined;
    if (lopsided) found.push(toLopsided(node, lopsided.worker, lopsided.idle));
    const trouble = every.filter((cell) => cell.gpu.state === kind && !lopsided?.idle.includes(cell));
    const alike = groupBy(trouble, (cell) => `${cell.gpu.why ?? ""}\n${holdersOf(cell).join(",")}`);
    for (const group of alike.values()) found.push(toFinding(kind, node, group));
  }
  return found;
}

function toLopsided(node: string, worker: Cell, idle: readonly Cell[]): Finding {
  return { ...toFinding("lopsided", node, idle), gpus: [worker.gpu.gpu], count: idle.length };
}

function toFinding(kind: FindingKind, node: string, cells: readonly Cell[]): Finding {
  const begins = cells.map(sinceOfCell).filter((since): since is number => since !== undefined);
  return {
    kind,
    node,
    gpus: cells.map((cell) => cell.gpu.gpu),
    uuids: cells.map((cell) => cell.gpu.uuid),
    who: [...new Set(cells.flatMap(holdersOf))],
    why: cells[0]?.gpu.why ?? "",
    count: cells.length,
    ...(begins.length ? { since: Math.min(...begins) } : {}),
  };
}

/** When the state began, or at least since when somebody is on the GPU. */
function sinceOfCell(cell: Cell): number | undefined {
  if (cell.gpu.since !== undefined) return cell.gpu.since;
  if (cell.gpu.state !== "held") return undefined;
  const begins = cell.sessions.map((one) => one.since).filter((since): since is number => since !== undefined);
  return begins.length ? Math.min(...begins) : undefined;
}
