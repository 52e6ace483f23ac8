// Slurm: the queue and why it waits, running jobs with what they make of their GPUs, nodes that somebody must look at,
// reservations on a time axis, partitions.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { queryInstant } from "../api";
import { toWords } from "../fleet";
import { ABSENT, formatDuration, formatHours, formatMoment } from "../format";
import { t, tName, useLanguage } from "../i18n";
import { serverNow, type LivePicture } from "../live";
import { AskedState, Blank, useAsked } from "../parts/asked";
import { SearchBox, Tabs } from "../parts/controls";
import { CsvButton, DataTable, nameColumn, type Column } from "../parts/data-table";
import { Name } from "../parts/marks";
import { ReservationAxis } from "../parts/reservation-axis";
import { SpreadBar } from "../parts/spread-bar";
import { linkTo, route } from "../router";
import {
  isBroken,
  needsSomebody,
  SLURM_QUERY,
  sortSlurm,
  type PendingJob,
  type QueueRow,
  type Slurm,
  type SlurmJob,
  type SlurmNode,
  type SlurmPartition,
} from "../slurm";
import { useStore } from "../store";

const EVERY_MS = 15_000;
const OLD_SECONDS = 300;
const TABS = ["queue", "running", "nodes", "reservations", "partitions"] as const;

export function useSlurm(picture: LivePicture): { slurm: Slurm | undefined; asked: ReturnType<typeof useAsked> } {
  const asked = useAsked(
    async (signal) => {
      const data = await queryInstant(SLURM_QUERY, serverNow(), signal);
      return data.resultType === "vector" ? data.result : [];
    },
    "",
    EVERY_MS,
  );
  const slurm = useMemo(() => (asked.data ? sortSlurm(asked.data, picture) : undefined), [asked.data, picture]);
  return { slurm, asked };
}

export function SlurmView({ picture }: { picture: LivePicture }): JSX.Element {
  const language = useLanguage();
  const { query } = useStore(route);
  const { slurm, asked } = useSlurm(picture);
  const tab = TABS.find((one) => one === query["tab"]) ?? "queue";
  if (!slurm) {
    if (!asked.data)
      return (
        <div class="data">
          <h1>{t("nav.slurm")}</h1>
          <AskedState asked={asked} what="Slurm" />
        </div>
      );
    return (
      <Blank title={t("slurm.none")}>
        <p>{t("slurm.none_help")}</p>
        <code>gpuscope agent --slurm commands</code>
      </Blank>
    );
  }
  const words = toWords(query["q"] ?? "");
  const shown: ShownProps = {
    tab,
    slurm,
    keep: (row) => !words.length || words.every((word) => JSON.stringify(row).toLowerCase().includes(word)),
    known: new Set(picture.nodes.map((one) => one.name)),
  };
  const old = slurm.readAt !== undefined && serverNow() - slurm.readAt > OLD_SECONDS;
  return (
    <div class="data">
      <div class="head">
        <h1>{t("nav.slurm")}</h1>
        <span class="soft" role="status">
          {Object.entries(slurm.jobStates)
            .map(([state, count]) => `${count} ${tName("jobstate", state)}`)
            .join(", ")}
          {slurm.version && ` · Slurm ${slurm.version}`}
        </span>
      </div>
      {(!slurm.up || old) && (
        <p class="strip note" role="alert">
          {t(slurm.up ? "slurm.old" : "slurm.down", { time: formatMoment(slurm.readAt, serverNow(), language) })}
        </p>
      )}
      <AskedState asked={asked} what="Slurm" />
      <div class="controls">
        <Tabs
          choices={TABS}
          chosen={tab}
          title={(one) => (
            <>
              {t(`slurm.${one}`)} <span class="soft">{countOf(slurm, one)}</span>
            </>
          )}
        />
        <SearchBox label={t("slurm.search")} />
        <TabCsv {...shown} />
      </div>
      <Shown {...shown} />
    </div>
  );
}

function countOf(slurm: Slurm, tab: (typeof TABS)[number]): number {
  switch (tab) {
    case "queue":
      return slurm.queue.reduce((sum, row) => sum + row.jobs, 0);
    case "running":
      return slurm.jobs.length + slurm.withoutSeries;
    case "nodes":
      return slurm.nodes.length;
    case "reservations":
      return slurm.reservations.length;
    case "partitions":
      return slurm.partitions.length;
  }
}

interface ShownProps {
  tab: (typeof TABS)[number];
  slurm: Slurm;
  /** Whether a row matches the search. */
  keep(row: object): boolean;
  /** Nodes of the fleet; Slurm has others, too. */
  known: ReadonlySet<string>;
}

/** What the tab shows, as a file; of the queue, each job that waits. */
function TabCsv({ tab, slurm, keep, known }: ShownProps): JSX.Element | null {
  switch (tab) {
    case "queue":
      return <CsvButton file="queue" rows={slurm.pending.filter(keep)} columns={pendingColumns()} />;
    case "running":
      return <CsvButton file="jobs" rows={slurm.jobs.filter(keep)} columns={jobColumns()} />;
    case "nodes":
      return <CsvButton file="slurm-nodes" rows={slurm.nodes.filter(keep)} columns={nodeColumns(known)} />;
    case "partitions":
      return <CsvButton file="partitions" rows={slurm.partitions.filter(keep)} columns={partitionColumns()} />;
    case "reservations":
      return null;
  }
}

function Shown({ tab, slurm, keep, known }: ShownProps): JSX.Element {
  switch (tab) {
    case "queue":
      return <Queue slurm={slurm} keep={keep} />;
    case "running":
      return <Running slurm={slurm} keep={keep} />;
    case "nodes":
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
    case "reservations":
      return <ReservationAxis reservations={slurm.reservations.filter(keep)} />;
    case "partitions":
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
}

/** Each job that waits, and below it all of them by partition and reason: the longest queue has no row for each. */
function Queue({ slurm, keep }: { slurm: Slurm; keep(row: object): boolean }): JSX.Element {
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

function pendingColumns(): Column<PendingJob>[] {
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

function Running({ slurm, keep }: { slurm: Slurm; keep(row: object): boolean }): JSX.Element {
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

export function jobColumns(): Column<SlurmJob>[] {
  const now = serverNow();
  return [
    {
      id: "job",
      title: t("group.job"),
      cell: (row) => (
        <a href={linkTo("job", row.job)}>
          <Name text={row.array || row.job} />
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

function nodeColumns(known: ReadonlySet<string>): Column<SlurmNode>[] {
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
      cell: (row) => gpuText(row.gpus),
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
      id: "partitions",
      title: t("slurm.partitions"),
      cell: (row) => <Name text={row.partitions.join(", ")} />,
      value: (row) => row.partitions.join(" "),
    },
  ];
}

const gpuText = (gpus: Record<string, number>): string =>
  Object.entries(gpus)
    .filter(([, count]) => count > 0)
    .map(([state, count]) => `${count} ${tName("gpustate", state)}`)
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

function partitionColumns(): Column<SlurmPartition>[] {
  return [
    nameColumn("partition", t("slurm.partition"), (row) => row.partition),
    {
      id: "gpus",
      title: t("slurm.gpus_by_state"),
      wide: true,
      cell: (row) => gpuText(row.gpus),
      value: (row) => row.gpus["allocated"],
    },
    {
      id: "running",
      title: tName("jobstate", "running"),
      number: true,
      cell: (row) => String(row.jobs["running"] ?? 0),
      value: (row) => row.jobs["running"] ?? 0,
    },
    {
      id: "pending",
      title: tName("jobstate", "pending"),
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
