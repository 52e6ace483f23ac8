// Nodes of Slurm: those that somebody must look at first, with the reason, since when, what it costs, and the next step.
import type { JSX } from "preact";
import { formatDuration, formatHours } from "../format";
import { t, tName } from "../i18n";
import { serverNow } from "../live";
import { linkTo } from "../router";
import { isBroken, needsSomebody, type Slurm, type SlurmNode } from "../slurm";
import { DataTable, type Column } from "./data-table";
import { Name } from "./marks";

export interface TabProps {
  slurm: Slurm;
  /** Whether a row matches the search. */
  keep(row: object): boolean;
}

interface NodesProps extends TabProps {
  /** Nodes of the fleet; Slurm has others, too. */
  known: ReadonlySet<string>;
}

export function SlurmNodes({ slurm, keep, known }: NodesProps): JSX.Element {
  return (
    <DataTable
      name={t("slurm.nodes")}
      rows={slurm.nodes.filter(keep)}
      columns={nodeColumns(known)}
      keyOf={(row) => row.node}
      empty={t("slurm.no_nodes")}
      rowClass={(row) => (isBroken(row) ? "severe" : needsSomebody(row) ? "noted" : "")}
    />
  );
}

export function nodeColumns(known: ReadonlySet<string>): Column<SlurmNode>[] {
  const now = serverNow();
  return [
    {
      id: "node",
      title: t("column.node"),
      cell: (row) =>
        known.has(row.node) ? (
          <a href={linkTo("node", row.node)}>
            <Name text={row.node} />
          </a>
        ) : (
          <Name text={row.node} />
        ),
      value: (row) => row.node,
    },
    {
      id: "state",
      title: t("column.state"),
      cell: (row) => (
        <span class={isBroken(row) ? "crit" : needsSomebody(row) ? "warn" : ""}>
          {needsSomebody(row) && "! "}
          {[row.state, ...row.flags].join(" + ")}
        </span>
      ),
      value: (row) => [row.state, ...row.flags].join("+"),
    },
    {
      id: "reason",
      title: t("slurm.why"),
      wide: true,
      cell: (row) => <Name text={row.reason ? `${row.reason}${row.by ? ` (${row.by})` : ""}` : "–"} />,
      value: (row) => row.reason,
    },
    {
      id: "since",
      title: t("attention.since"),
      cell: (row) => (row.reasonAt === undefined ? "–" : formatDuration(now - row.reasonAt)),
      value: (row) => row.reasonAt,
    },
    {
      id: "gpus",
      title: t("slurm.gpus_by_state"),
      wide: true,
      cell: (row) => countsText(row.gpus, gpuState),
      value: (row) => row.gpus["idle"],
    },
    {
      id: "cost",
      title: t("findings.cost"),
      number: true,
      cell: (row) => costText(row, now),
      value: (row) => cost(row, now),
    },
    {
      id: "next",
      title: t("attention.next"),
      wide: true,
      cell: (row) => needsSomebody(row) && <Resume node={row.node} />,
    },
    {
      id: "partitions",
      title: t("slurm.partitions"),
      cell: (row) => <Name text={row.partitions.join(", ")} />,
      value: (row) => row.partitions.join(" "),
    },
  ];
}

function Resume({ node }: { node: string }): JSX.Element {
  return (
    <>
      {t("slurm.repaired")}{" "}
      <code>
        <Name text={`scontrol update NodeName=${node} State=RESUME`} />
      </code>
    </>
  );
}

export const gpuState = (state: string): string => tName("gpustate", state);

/** How many are in which state: "7 allocated, 1 idle". */
export const countsText = (counts: Readonly<Record<string, number>>, nameOf: (state: string) => string): string =>
  Object.entries(counts)
    .filter(([, count]) => count > 0)
    .map(([state, count]) => t("count.state", { count, state: nameOf(state) }))
    .join(", ") || "–";

/** GPU-hours that nobody could use since the node was drained or went down. */
function cost(row: SlurmNode, now: number): number | undefined {
  const gpus = (row.gpus["drained"] ?? 0) + (row.gpus["down"] ?? 0);
  return needsSomebody(row) && gpus && row.reasonAt !== undefined
    ? (gpus * Math.max(now - row.reasonAt, 0)) / 3600
    : undefined;
}

const costText = (row: SlurmNode, now: number): string => {
  const hours = cost(row, now);
  return hours === undefined ? "–" : t("unit.gpu_hours", { hours: formatHours(hours) });
};
