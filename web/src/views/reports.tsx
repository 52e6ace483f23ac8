// Reports: who used how many GPU-hours and how many of them idly, over a period, beside the period before.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { getJson, QueryError } from "../api";
import { formatHours, formatLength, formatRange, formatValue } from "../format";
import { t, useLanguage } from "../i18n";
import { serverNow } from "../live";
import { AskedState, useAsked } from "../parts/asked";
import { Segments } from "../parts/controls";
import { CsvButton, DataTable, type Column } from "../parts/data-table";
import { HourPlot, PartsBar } from "../parts/hour-plot";
import { Name } from "../parts/marks";
import { joinPeriods, type ComparedRow, type Report } from "../reports";
import { sentenceText } from "../report-text";
import { changeQuery, route } from "../router";
import { useStore } from "../store";
import { parseDuration } from "../time";

const KINDS = ["usage", "idle"] as const;
const GROUPINGS = ["user", "account", "pod", "namespace", "job", "node", "model"] as const;
const PERIODS = ["1d", "7d", "30d", "90d"] as const;
const EVERY_MS = 300_000;

const askReport = (parameters: Record<string, string>, signal: AbortSignal): Promise<Report> =>
  getJson<Report>(`api/report?${new URLSearchParams(parameters)}`, signal, 120_000);

export function Reports(): JSX.Element {
  const language = useLanguage();
  const { query } = useStore(route);
  const kind = KINDS.find((one) => one === query["kind"]) ?? "usage";
  const by = GROUPINGS.find((one) => one === query["by"]) ?? "user";
  const period = PERIODS.find((one) => one === query["since"]) ?? "7d";
  const compare = query["compare"] === "1";
  const ask =
    (since: number, until: number) =>
    async (signal: AbortSignal): Promise<Report> => {
      const now = serverNow();
      const parameters = { kind, by, start: String(Math.floor(now - since)), end: String(Math.floor(now - until)) };
      return askReport({ ...parameters, time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone }, signal).catch(
        // A machine without the time zone database knows only UTC.
        (error: unknown) => {
          if (!(error instanceof QueryError && error.message.includes("time_zone"))) throw error;
          return askReport(parameters, signal);
        },
      );
    };
  const length = parseDuration(period) ?? 604_800;
  const asked = useAsked(ask(length, 0), `${kind}/${by}/${period}`, EVERY_MS);
  const before = useAsked(
    async (signal) => (compare ? ask(2 * length, length)(signal) : undefined),
    `${kind}/${by}/${period}/${compare}`,
    EVERY_MS,
  );
  const rows = useMemo(() => joinPeriods(asked.data, before.data), [asked.data, before.data]);
  const columns = reportColumns(compare, by, isRead(before.data));
  return (
    <div class="data">
      <div class="head">
        <h1>{t("nav.reports")}</h1>
        {asked.data && <span class="soft">{formatRange(asked.data.start, asked.data.end, serverNow(), language)}</span>}
      </div>
      <div class="controls">
        <Segments
          label={t("reports.kind")}
          queryKey="kind"
          choices={KINDS}
          chosen={kind}
          title={(one) => t(`reports.${one}`)}
        />
        <Segments
          label={t("sessions.by")}
          queryKey="by"
          choices={GROUPINGS}
          chosen={by}
          title={(one) => t(`group.${one}`)}
        />
        <Segments
          label={t("findings.period")}
          queryKey="since"
          choices={PERIODS}
          chosen={period}
          usual="7d"
          title={(one) => t("time.last", { length: formatLength(one) })}
        />
        <button aria-pressed={compare} onClick={() => changeQuery({ compare: compare ? "" : "1" })}>
          {t("reports.compare")}
        </button>
        <CsvButton file={`report-${kind}-${by}`} rows={rows} columns={columns} />
      </div>
      <AskedState asked={asked} what={t("nav.reports")} />
      {compare && before.problem && <AskedState asked={before} what={t("reports.before")} />}
      {asked.data && (
        <>
          <PartsBar report={asked.data} />
          {asked.data.buckets.length > 1 && (
            <HourPlot report={asked.data} {...(before.data ? { before: before.data } : {})} />
          )}
          <section class="section">
            <ShareKey />
            <DataTable
              name={t(`reports.${kind}`)}
              rows={rows}
              columns={columns}
              keyOf={(one) => `${one.namespace}/${one.name}`}
              sort={kind === "idle" ? "-idle" : "-held"}
              empty={t("reports.none")}
            />
          </section>
          <ul class="section soft small">
            {sentencesOf(asked.data).map((one) => (
              <li key={one}>
                <Name text={one} />
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

/** What is not known, then how the numbers were made. */
const sentencesOf = ({ missing, missing_keys, notes, notes_keys }: Report): string[] => [
  ...missing.map((one, place) => sentenceText(one, missing_keys[place])),
  ...notes.map((one, place) => sentenceText(one, notes_keys[place])),
];

/** A period in which no GPU was read says nothing of anybody: not that they held nothing. */
const isRead = (report: Report | undefined): boolean => (report?.invariant.gpu_hours ?? 0) > 0;

function reportColumns(compare: boolean, by: (typeof GROUPINGS)[number], isKnown: boolean): Column<ComparedRow>[] {
  const change = (one: ComparedRow): number | undefined =>
    isKnown ? (one.now?.gpu_hours ?? 0) - (one.before?.gpu_hours ?? 0) : undefined;
  const hours = (
    id: string,
    title: string,
    value: (one: ComparedRow) => number | null | undefined,
  ): Column<ComparedRow> => ({
    id,
    title,
    number: true,
    cell: (one) => formatHours(value(one)),
    value: (one) => value(one) ?? undefined,
  });
  return [
    {
      id: "name",
      title: t(`group.${by}`),
      wide: true,
      cell: (one) => <Name text={[one.namespace, one.name].filter(Boolean).join("/") || t("sessions.no_name")} />,
      value: (one) => [one.namespace, one.name].filter(Boolean).join("/"),
    },
    hours("held", t("reports.held"), (one) => one.now?.gpu_hours),
    hours("busy", t("reports.busy"), (one) => one.now?.busy_hours),
    hours("idle", t("reports.idle_hours"), (one) => one.now?.idle_hours),
    hours("stretches", t("reports.stretches"), (one) => one.now?.idle_held_hours),
    hours("energy", "kWh", (one) => one.now?.energy_kwh),
    { id: "share", title: t("reports.share"), cell: (one) => <ShareBar row={one} /> },
    ...(compare
      ? [
          hours("before", t("reports.before"), (one) => one.before?.gpu_hours),
          {
            id: "change",
            title: t("reports.change"),
            number: true,
            cell: (one: ComparedRow) => `${(change(one) ?? 0) > 0 ? "+" : ""}${formatHours(change(one))}`,
            value: change,
          },
        ]
      : []),
  ];
}

/** What the parts of a bar mean. Amber is what somebody should look at: not every pause between two kernels. */
function ShareKey(): JSX.Element {
  return (
    <ul class="series">
      {(["busy", "unknown", "stretches", "idle"] as const).map((part) => (
        <li key={part}>
          <span class={`swatch hour-${part}`} aria-hidden="true" />{" "}
          {part === "stretches" ? t("reports.stretches") : t(`hours.${part}`)}
        </li>
      ))}
    </ul>
  );
}

/** Busy and unknown hours of one row, long idle stretches, and the rest of the idle hours side by side. */
function ShareBar({ row }: { row: ComparedRow }): JSX.Element {
  const {
    gpu_hours: held = 0,
    busy_hours: busy,
    unknown_hours: unknown = 0,
    idle_held_hours: stretches = 0,
  } = row.now ?? {};
  if (!held || busy === null || busy === undefined) return <>–</>;
  return (
    <span class="whole">
      <span class="share" aria-hidden="true">
        <i class="busy" style={{ "--v": `${(100 * busy) / held}%` }} />
        <i class="unknown" style={{ "--v": `${(100 * unknown) / held}%` }} />
        <i class="stretches" style={{ "--v": `${(100 * stretches) / held}%` }} />
      </span>
      {formatValue(busy / held, "ratio")}
    </span>
  );
}
