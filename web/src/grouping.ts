// The fleet's cells by something else than their node: model, namespace, Slurm partition, or a label of the agents. In: the
// cells by node, and what the history says of nodes. Out: groups in the same shape. A GPU in two groups stands in both.
import type { InstantSample } from "./api";
import { groupBy, leaves, type Cell, type NodeCells } from "./fleet";
import { naturalOrder, shortModel } from "./format";

export const FLEET_GROUPINGS = ["node", "model", "namespace", "partition", "label"] as const;
export type FleetGrouping = (typeof FLEET_GROUPINGS)[number];

/** By node: `partition` and the labels of its agent. */
export type NodeLabels = ReadonlyMap<string, Readonly<Record<string, readonly string[]>>>;

export const NODE_LABELS_QUERY = '{__name__=~"gpuscope_agent_info|gpuscope_slurm_node_partition_info"}';
const OWN_LABELS = new Set([
  "__name__",
  "version",
  "instance",
  "node",
  "job",
  "simulated",
  "pythonversion",
  "revision",
]);

export function nodeLabels(samples: readonly InstantSample[]): NodeLabels {
  const found = new Map<string, Record<string, string[]>>();
  for (const { metric } of samples) {
    const node = metric["node"] ?? metric["instance"] ?? "";
    const own = found.get(node) ?? {};
    found.set(node, own);
    const slurm = metric["__name__"] === "gpuscope_slurm_node_partition_info";
    for (const [name, value] of Object.entries(metric)) {
      if (slurm ? name === "partition" : !OWN_LABELS.has(name)) (own[name] ??= []).push(value);
    }
  }
  return found;
}

export const labelChoices = (labels: NodeLabels): string[] =>
  [...new Set([...labels.values()].flatMap((own) => Object.keys(own)))].filter((name) => name !== "partition").sort();

export function regroup(
  nodes: readonly NodeCells[],
  by: FleetGrouping,
  labels: NodeLabels,
  label: string,
): NodeCells[] {
  if (by === "node") return [...nodes];
  const pairs = nodes.flatMap((node) =>
    node.cells.flatMap((cell) => {
      const units = by === "namespace" ? leaves([cell]) : [cell];
      return units.flatMap((unit) =>
        groupsOf(unit, node.name, by, labels, label).map((name): [string, Cell] => [name, unit]),
      );
    }),
  );
  return [...groupBy(pairs, ([name]) => name)]
    .sort(([left], [right]) => (left === "" ? 1 : right === "" ? -1 : naturalOrder(left, right)))
    .map(([name, members]) => ({ name, cells: members.map(([, cell]) => cell), isGroup: true }));
}

/** An empty name is the group of those that have none. */
function groupsOf(cell: Cell, node: string, by: FleetGrouping, labels: NodeLabels, label: string): readonly string[] {
  const some = (names: Iterable<string>): readonly string[] => {
    const found = [...new Set(names)].filter(Boolean);
    return found.length ? found : [""];
  };
  switch (by) {
    case "model":
      return some([shortModel(cell.gpu.model ?? "")]);
    case "namespace":
      return some(cell.sessions.map((one) => one.namespace ?? ""));
    case "partition":
      return some(labels.get(node)?.["partition"] ?? []);
    case "label":
      return some(labels.get(node)?.[label] ?? []);
    case "node":
      return [node];
  }
}
