// Jobs that run, and what each makes of its GPUs: never an average without its spread. A suspended job keeps its GPUs, so it
// is listed and marked; it is not counted as running.
import type { JSX } from "preact";
import { ABSENT, formatDuration } from "../format";
import { t } from "../i18n";
import { serverNow } from "../live";
import { linkTo } from "../router";
import type { SlurmJob } from "../slurm";
import { DataTable, nameColumn, type Column } from "./data-table";
import { Name } from "./marks";
import type { TabProps } from "./slurm-nodes";
import { SpreadBar } from "./spread-bar";

export function Running({ slurm, keep }: TabProps): JSX.Element {
  return (
    <>
      {slurm.withoutSeries > 0 && <p class="soft">{t("slurm.without_series", { count: slurm.withoutSeries })}</p>}
      <DataTable
        name={t("slurm.running")}
        rows={slurm.jobs.filter(keep)}
        columns={jobColumns()}
        keyOf={(row) => row.job}
        sort="-gpus"
        empty={t("slurm.no_jobs")}
      />
    </>
  );
}

export function jobColumns(): Column<SlurmJob>[] {
  const now = serverNow();
  return [
    {
      id: "job",
      title: t("group.job"),
      cell: (row) => (
        <a href={linkTo("job", row.job)}>
          <Name text={row.array || row.job} />
          {row.suspended && <span class="warn"> {t("jobstate.suspended")}</span>}
        </a>
      ),
      value: (row) => row.job,
    },
    nameColumn("name", t("slurm.name"), (row) => row.name, { wide: true }),
    nameColumn("user", t("column.user"), (row) => row.user),
    nameColumn("account", t("slurm.account"), (row) => row.account),
    nameColumn("partition", t("slurm.partition"), (row) => row.partition),
    {
      id: "nodes",
      title: t("slurm.nodes"),
      cell: (row) => <Name text={row.nodes.join(", ") || "–"} />,
      value: (row) => row.nodes.join(" "),
    },
    { id: "gpus", title: t("fleet.gpus"), number: true, cell: (row) => row.gpus ?? "–", value: (row) => row.gpus },
    { id: "use", title: t("slurm.use"), wide: true, cell: (row) => <Use row={row} />, value: (row) => row.busy[0] },
    {
      id: "running",
      title: t("slurm.runs"),
      number: true,
      cell: (row) => formatDuration(row.startedAt === undefined ? undefined : now - row.startedAt),
      value: (row) => (row.startedAt === undefined ? undefined : now - row.startedAt),
    },
    {
      id: "left",
      title: t("slurm.left"),
      number: true,
      cell: (row) => formatDuration(row.endsAt === undefined ? undefined : Math.max(row.endsAt - now, 0)),
      value: (row) => (row.endsAt === undefined ? undefined : row.endsAt - now),
    },
  ];
}

/** How busy each GPU of the job is; GPUs that it was given and has no process on are said. Whether that is wrong is a finding. */
function Use({ row }: { row: SlurmJob }): JSX.Element {
  return (
    <>
      {row.busy.length > 0 ? <SpreadBar values={row.busy} /> : ABSENT}
      {row.unused > 0 && <span class="soft"> {t("slurm.without_process", { count: row.unused })}</span>}
    </>
  );
}
