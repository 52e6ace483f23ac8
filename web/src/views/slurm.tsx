// Slurm: the queue and why it waits, running jobs with what they make of their GPUs, nodes that somebody must look at,
// reservations on a time axis, partitions.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { queryInstant } from "../api";
import { toWords } from "../fleet";
import { formatMoment, localNumber } from "../format";
import { t, tName, useLanguage } from "../i18n";
import { serverNow, type LivePicture } from "../live";
import { AskedState, Blank, useAsked } from "../parts/asked";
import { SearchBox, Tabs } from "../parts/controls";
import { CsvButton } from "../parts/data-table";
import { ReservationAxis } from "../parts/reservation-axis";
import { jobColumns, Running } from "../parts/slurm-jobs";
import { countsText, nodeColumns, SlurmNodes, type TabProps } from "../parts/slurm-nodes";
import { partitionColumns, SlurmPartitions } from "../parts/slurm-partitions";
import { pendingColumns, Queue } from "../parts/slurm-queue";
import { route } from "../router";
import { SLURM_QUERY, sortSlurm, type Slurm } from "../slurm";
import { useStore } from "../store";

const EVERY_MS = 15_000;
const OLD_SECONDS = 300;
const TABS = ["queue", "running", "nodes", "reservations", "partitions"] as const;

function useSlurm(picture: LivePicture): { slurm: Slurm | undefined; asked: ReturnType<typeof useAsked> } {
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
          {countsText(slurm.jobStates, (state) => tName("jobstate", state))}
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
              {t(`slurm.${one}`)} <span class="soft">{localNumber(countOf(slurm, one), 0)}</span>
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
      return slurm.jobs.filter((one) => !one.suspended).length + slurm.withoutSeries;
    case "nodes":
      return slurm.nodes.length;
    case "reservations":
      return slurm.reservations.length;
    case "partitions":
      return slurm.partitions.length;
  }
}

interface ShownProps extends TabProps {
  tab: (typeof TABS)[number];
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
      return <SlurmNodes slurm={slurm} keep={keep} known={known} />;
    case "reservations":
      return <ReservationAxis reservations={slurm.reservations.filter(keep)} />;
    case "partitions":
      return <SlurmPartitions slurm={slurm} keep={keep} />;
  }
}
