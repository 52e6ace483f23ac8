// Partitions of Slurm: GPUs by state, jobs that run and wait, and the longest wait.
import type { JSX } from "preact";
import { formatDuration } from "../format";
import { t } from "../i18n";
import type { SlurmPartition } from "../slurm";
import { DataTable, nameColumn, type Column } from "./data-table";
import { countsText, gpuState, type TabProps } from "./slurm-nodes";

export function SlurmPartitions({ slurm, keep }: TabProps): JSX.Element {
  return (
    <DataTable
      name={t("slurm.partitions")}
      rows={slurm.partitions.filter(keep)}
      columns={partitionColumns()}
      keyOf={(row) => row.partition}
      empty={t("slurm.no_partitions")}
    />
  );
}

export function partitionColumns(): Column<SlurmPartition>[] {
  return [
    nameColumn("partition", t("slurm.partition"), (row) => row.partition),
    {
      id: "gpus",
      title: t("slurm.gpus_by_state"),
      wide: true,
      cell: (row) => countsText(row.gpus, gpuState),
      value: (row) => row.gpus["allocated"],
    },
    {
      id: "running",
      title: t("slurm.running"),
      number: true,
      cell: (row) => String(row.jobs["running"] ?? 0),
      value: (row) => row.jobs["running"] ?? 0,
    },
    {
      id: "pending",
      title: t("alerts.tab.pending"),
      number: true,
      cell: (row) => String(row.jobs["pending"] ?? 0),
      value: (row) => row.jobs["pending"] ?? 0,
    },
    {
      id: "requested",
      title: t("slurm.requested"),
      number: true,
      cell: (row) => row.requested ?? "–",
      value: (row) => row.requested,
    },
    {
      id: "oldest",
      title: t("slurm.oldest"),
      number: true,
      cell: (row) => formatDuration(row.oldest),
      value: (row) => row.oldest,
    },
  ];
}
