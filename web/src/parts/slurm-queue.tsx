// The queue of Slurm: each job that waits with its reason, and all of them by partition and reason.
import type { JSX } from "preact";
import { formatDuration } from "../format";
import { t, tName } from "../i18n";
import { serverNow } from "../live";
import type { PendingJob, QueueRow } from "../slurm";
import { DataTable, nameColumn, type Column } from "./data-table";
import { Name } from "./marks";
import type { TabProps } from "./slurm-nodes";

/** Each job that waits, and below it all of them by partition and reason: the longest queue has no row for each. */
export function Queue({ slurm, keep }: TabProps): JSX.Element {
  const jobs = slurm.queue.reduce((sum, row) => sum + row.jobs, 0);
  // An array of which no task has started is one row with a number of tasks.
  const listed = slurm.pending.reduce((sum, row) => sum + (row.tasks ?? 1), 0);
  return (
    <>
      {slurm.pending.length > 0 && (
        <section>
          <DataTable
            name={t("slurm.waiting_jobs")}
            rows={slurm.pending.filter(keep)}
            columns={pendingColumns()}
            keyOf={(row) => row.job}
            sort="-waited"
            sortKey="wsort"
            empty={t("slurm.no_queue")}
          />
          {jobs > listed && <p class="soft">{t("slurm.more_waiting", { count: jobs - listed })}</p>}
        </section>
      )}
      <section class="section">
        {slurm.queue.length > 0 && <h2>{t("slurm.by_reason")}</h2>}
        <DataTable
          name={t("slurm.by_reason")}
          rows={slurm.queue.filter(keep)}
          columns={queueColumns()}
          keyOf={(row) => `${row.partition}/${row.reason}`}
          sort="-jobs"
          empty={t("slurm.no_queue")}
        />
      </section>
    </>
  );
}

export function pendingColumns(): Column<PendingJob>[] {
  const now = serverNow();
  const waited = (row: PendingJob): number | undefined =>
    row.eligibleAt === undefined || row.eligibleAt > now ? undefined : now - row.eligibleAt;
  return [
    {
      id: "job",
      title: t("group.job"),
      cell: (row) => (
        <>
          <Name text={row.job} />
          {row.tasks === undefined ? "" : <span class="soft whole"> {t("slurm.tasks", { count: row.tasks })}</span>}
        </>
      ),
      value: (row) => row.job,
    },
    nameColumn("name", t("slurm.name"), (row) => row.name, { wide: true }),
    nameColumn("user", t("column.user"), (row) => row.user),
    nameColumn("account", t("slurm.account"), (row) => row.account),
    nameColumn("partition", t("slurm.partition"), (row) => row.partition),
    {
      id: "gpus",
      title: t("slurm.requested"),
      number: true,
      cell: (row) => row.gpus ?? "–",
      value: (row) => row.gpus,
    },
    {
      id: "reason",
      title: t("slurm.reason"),
      wide: true,
      cell: (row) => <Reason reason={row.reason} />,
      value: (row) => row.reason,
    },
    {
      id: "waited",
      title: t("job.waited"),
      number: true,
      cell: (row) => formatDuration(waited(row)),
      value: waited,
    },
  ];
}

const WAITS = [300, 3600, 21600, 86400];

function queueColumns(): Column<QueueRow>[] {
  return [
    nameColumn("partition", t("slurm.partition"), (row) => row.partition),
    {
      id: "reason",
      title: t("slurm.reason"),
      wide: true,
      cell: (row) => <Reason reason={row.reason} />,
      value: (row) => row.reason,
    },
    { id: "jobs", title: t("slurm.jobs"), number: true, cell: (row) => String(row.jobs), value: (row) => row.jobs },
    {
      id: "requested",
      title: t("slurm.part_requested"),
      number: true,
      cell: (row) => row.requested ?? "–",
      value: (row) => row.requested,
    },
    {
      id: "oldest",
      title: t("slurm.part_oldest"),
      number: true,
      cell: (row) => formatDuration(row.oldest),
      value: (row) => row.oldest,
    },
    { id: "waiting", title: t("slurm.part_waiting"), wide: true, cell: (row) => <Waiting row={row} /> },
  ];
}

/** Slurm's own word, and what it means where we know it. */
function Reason({ reason }: { reason: string }): JSX.Element {
  const meaning = tName("reason", reason);
  return (
    <>
      <code>
        <Name text={reason} />
      </code>{" "}
      {meaning !== reason && <span class="soft">{meaning}</span>}
    </>
  );
}

function Waiting({ row }: { row: QueueRow }): JSX.Element {
  const all = row.waiting[row.waiting.length - 1]?.count ?? 0;
  const upTo = (seconds: number): number => row.waiting.filter((one) => one.within <= seconds).at(-1)?.count ?? 0;
  const parts = [...WAITS, Infinity].map((limit, place) => ({
    limit,
    count: (limit === Infinity ? all : upTo(limit)) - (place ? upTo(WAITS[place - 1] ?? 0) : 0),
  }));
  return (
    <span class="soft small">
      {parts
        .filter((one) => one.count > 0)
        .map((one) =>
          one.limit === Infinity
            ? t("slurm.longer", { count: one.count, time: formatDuration(86400) })
            : t("slurm.within", { count: one.count, time: formatDuration(one.limit) }),
        )
        .join(" · ")}
    </span>
  );
}
