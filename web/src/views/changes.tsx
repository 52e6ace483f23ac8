// What else changed in this time range: against the range before it, which numbers moved the most, who came and went, and
// which errors and alerts began.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { queryInstant, queryRange, type InstantSample } from "../api";
import { subjectOf } from "../alerts";
import { averageQuery, changeRows, guests, largestFirst, WATCHED, type ChangeRow, type Guest } from "../changes";
import { formatDuration, formatMoment, formatValue } from "../format";
import { t, useLanguage } from "../i18n";
import { nodeNames, serverNow, type LivePicture } from "../live";
import { AskedState, useAsked } from "../parts/asked";
import { CsvButton, DataTable, nameColumn, type Column } from "../parts/data-table";
import { Name } from "../parts/marks";
import { TimePicker } from "../parts/time-picker";
import { linkTo, route } from "../router";
import { useStore } from "../store";
import type { Span } from "../time";
import { timeline } from "../timeline";

const EVERY_MS = 60_000;

interface Event {
  at: number;
  text: string;
  metric: Readonly<Record<string, string>>;
}
interface Changes {
  rows: ChangeRow[];
  guests: Guest[];
  events: Event[];
}

async function vector(query: string, at: number, signal: AbortSignal): Promise<InstantSample[]> {
  const data = await queryInstant(query, at, signal);
  return data.resultType === "vector" ? data.result : [];
}

async function fetchChanges(span: Span, instance: string, signal: AbortSignal): Promise<Changes> {
  const seconds = span.end - span.start;
  const only = instance ? `instance=${JSON.stringify(instance)}` : "";
  const narrow = (metric: string): string =>
    only ? (metric.includes("{") ? metric.replace("{", `{${only},`) : `${metric}{${only}}`) : metric;
  const [rows, start, end, xids, alerts] = await Promise.all([
    Promise.all(
      WATCHED.map(async (one) => {
        const metric = narrow(one.metric);
        const [during, before] = await Promise.all([
          vector(averageQuery(metric, seconds, 0), span.end, signal),
          vector(averageQuery(metric, seconds, seconds), span.end, signal),
        ]);
        return changeRows(one, during, before);
      }),
    ),
    vector(narrow("gpuscope_process_memory_bytes"), span.start, signal),
    vector(narrow("gpuscope_process_memory_bytes"), span.end, signal),
    vector(
      `last_over_time(${narrow("gpuscope_gpu_xid_last_timestamp_seconds")}[${Math.round(seconds)}s])`,
      span.end,
      signal,
    ),
    queryRange(
      narrow('ALERTS{alertstate="firing"}'),
      span.start,
      span.end,
      Math.max(Math.round(seconds / 120), 15),
      signal,
    ).catch(() => []),
  ]);
  const errors = xids
    .map((one) => ({ at: Number(one.value[1]), text: `XID ${one.metric["xid"] ?? ""}`, metric: one.metric }))
    .filter((one) => one.at >= span.start && one.at <= span.end);
  const fired = alerts
    .map((one) => ({
      at: one.values[0]?.[0] ?? span.end,
      text: one.metric["alertname"] ?? "",
      metric: one.metric,
    }))
    .filter((one) => one.at > span.start + 15);
  return {
    rows: largestFirst(rows.flat()),
    guests: guests(start, end),
    events: [...errors, ...fired].sort((left, right) => left.at - right.at),
  };
}

export function ChangesView({ picture }: { picture: LivePicture }): JSX.Element {
  const language = useLanguage();
  const { query } = useStore(route);
  const { span } = useStore(timeline);
  const node = picture.nodes.find((one) => one.name === query["node"]);
  const [start, end] = [Math.floor(span.start), Math.floor(span.end)];
  const asked = useAsked(
    (signal) => fetchChanges({ start, end }, node?.instance ?? "", signal),
    `${start}/${end}/${node?.instance ?? ""}`,
    EVERY_MS,
  );
  const names = useMemo(() => nodeNames(picture), [picture.nodes.length]);
  const now = serverNow();
  const changed = changeColumns(names);
  return (
    <div class="data">
      <div class="head">
        <h1>{t("changes.title")}</h1>
        <span class="soft">
          {node && <Name text={`${node.name} · `} />}
          {t("changes.against", { length: formatDuration(end - start), time: formatMoment(start, now, language) })}
        </span>
      </div>
      <TimePicker />
      <AskedState asked={asked} what={t("changes.title")} />
      {asked.data && (
        <>
          <section class="section">
            <h2>{t("changes.events")}</h2>
            <ul>
              {asked.data.events.map((one, place) => (
                <li key={place}>
                  {formatMoment(one.at, now, language)} <b>{one.text}</b>{" "}
                  <Name text={subjectOf(one.metric, names.get(one.metric["instance"] ?? ""))} />
                </li>
              ))}
            </ul>
            {!asked.data.events.length && <p class="soft">{t("changes.no_events")}</p>}
          </section>
          <section class="section">
            <h2>{t("changes.guests")}</h2>
            <DataTable
              name={t("changes.guests")}
              rows={asked.data.guests}
              columns={guestColumns(names)}
              keyOf={(one) => one.key}
              sortKey="gsort"
              empty={t("changes.no_guests")}
            />
          </section>
          <section class="section">
            <div class="controls">
              <h2>{t("changes.numbers")}</h2>
              <CsvButton file="changes" rows={asked.data.rows} columns={changed} />
            </div>
            <DataTable
              name={t("changes.numbers")}
              rows={asked.data.rows}
              columns={changed}
              keyOf={(one) => one.key}
              empty={t("changes.no_numbers")}
            />
          </section>
        </>
      )}
    </div>
  );
}

function changeColumns(names: ReadonlyMap<string, string>): Column<ChangeRow>[] {
  const where = (row: ChangeRow): string =>
    [names.get(row.instance) ?? row.instance, row.gpu && `GPU ${row.gpu}`].filter(Boolean).join(" ");
  return [
    {
      id: "where",
      title: t("alerts.subject"),
      cell: (row) => (
        <a href={row.uuid ? linkTo("gpu", row.uuid) : linkTo("node", names.get(row.instance) ?? row.instance)}>
          <Name text={where(row)} />
        </a>
      ),
      value: where,
    },
    {
      id: "metric",
      title: t("changes.metric"),
      wide: true,
      cell: (row) => <code>{row.metric}</code>,
      value: (row) => row.metric,
    },
    {
      id: "before",
      title: t("reports.before"),
      number: true,
      cell: (row) => formatValue(row.before, row.unit),
      value: (row) => row.before,
    },
    {
      id: "during",
      title: t("changes.during"),
      number: true,
      cell: (row) => formatValue(row.during, row.unit),
      value: (row) => row.during,
    },
    {
      id: "size",
      title: t("reports.change"),
      cell: (row) => (
        <span class="whole">
          {row.during > row.before ? "↑" : "↓"}{" "}
          <span class="works">
            <i style={{ "--v": `${Math.round(row.size * 100)}%` }} />
          </span>
        </span>
      ),
      value: (row) => row.size,
    },
  ];
}

function guestColumns(names: ReadonlyMap<string, string>): Column<Guest>[] {
  return [
    { id: "what", title: t("reports.change"), cell: (row) => t(`changes.${row.what}`), value: (row) => row.what },
    {
      id: "where",
      title: t("alerts.subject"),
      cell: (row) => <Name text={`${names.get(row.instance) ?? row.instance} GPU ${row.gpu}`} />,
      value: (row) => `${row.instance} ${row.gpu}`,
    },
    {
      id: "who",
      title: t("attention.who"),
      cell: (row) => <Name text={row.who || t("sessions.no_name")} />,
      value: (row) => row.who,
    },
    nameColumn("command", t("column.command"), (row) => row.command),
    { id: "pid", title: t("column.pid"), number: true, cell: (row) => row.pid, value: (row) => row.pid },
  ];
}
