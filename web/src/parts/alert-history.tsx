// Which alerts fired when, from the series that rules write: one row for each alert, over the time range of the page.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { queryRange, type Series } from "../api";
import { columnOf, timesOf } from "../charts/align";
import { drawStrip, type StripOptions, type StripRow } from "../charts/plot";
import { subjectOf, type Labels } from "../alerts";
import { toWords } from "../fleet";
import { formatDuration, formatMoment } from "../format";
import { spoken, t } from "../i18n";
import { nodeNames, serverNow, type LivePicture } from "../live";
import { useStore } from "../store";
import { alignSpan, chooseStep, type Span } from "../time";
import { timeline } from "../timeline";
import { AskedState, useAsked } from "./asked";
import { plotOptions, shapeOf, usePlot } from "./chart-body";
import { DataTable, nameColumn, type Column } from "./data-table";
import { TimePicker } from "./time-picker";
import { useWidth } from "./width";

const QUERY =
  'max by (alertname, severity, instance, gpu, uuid, namespace, pod, slurm_job, user) (ALERTS{alertstate="firing"})';
const EVERY_MS = 30_000;
const MOST_ROWS = 40;

interface Episode {
  key: string;
  name: string;
  severity: string;
  subject: string;
  start: number;
  end: number;
  isOver: boolean;
}

export function AlertHistory({ search, picture }: { search: string; picture: LivePicture }): JSX.Element {
  const { span } = useStore(timeline);
  const { box, width } = useWidth();
  const step = Math.max(chooseStep(span.end - span.start, 900), 15);
  const aligned = alignSpan(span, step);
  const asked = useAsked(
    (signal) => queryRange(QUERY, aligned.start, aligned.end, step, signal),
    `${aligned.start}-${aligned.end}`,
    EVERY_MS,
  );
  const words = toWords(search);
  const series = (asked.data ?? []).filter((one) => {
    const text = Object.values(one.metric).join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const names = nodeNames(picture);
  const where = (metric: Labels): string => subjectOf(metric, names.get(metric["instance"] ?? ""));
  const episodes = useMemo(
    () => series.flatMap((one) => episodesOf(one, where(one.metric), step, aligned.end)),
    [series.length, asked.data],
  );
  return (
    <>
      <TimePicker />
      <div class="panel section" ref={box}>
        <AskedState asked={asked} what={t("alerts.tab.history")} />
        {asked.data && !series.length && <div class="message brief">{t("alerts.no_history")}</div>}
        {series.length > 0 && width > 0 && (
          <Strip series={series.slice(0, MOST_ROWS)} where={where} span={aligned} step={step} width={width} />
        )}
        {series.length > MOST_ROWS && <p class="soft small">{t("explore.first", { count: MOST_ROWS })}</p>}
      </div>
      {episodes.length > 0 && <Episodes episodes={episodes} />}
    </>
  );
}

function Strip({
  series,
  where,
  span,
  step,
  width,
}: {
  series: readonly Series[];
  where(metric: Labels): string;
  span: Span;
  step: number;
  width: number;
}): JSX.Element {
  const times = useMemo(() => timesOf(span, step), [span.start, span.end, step]);
  const rows = useMemo(
    () =>
      series.map((one): StripRow => {
        const severe = ["critical", "page"].includes(one.metric["severity"] ?? "");
        const colour = severe ? "severe" : one.metric["severity"] === "warning" ? "act" : "neutral";
        return {
          name: [one.metric["alertname"], where(one.metric)].filter(Boolean).join(" · "),
          column: columnOf(one, span, step, times.length),
          look: () => ({ colour }),
        };
      }),
    [series, times],
  );
  const options = useMemo(
    (): StripOptions => ({ ...plotOptions(times, width - 22, [], () => undefined), rows }),
    [rows, width],
  );
  const host = usePlot(drawStrip, options, shapeOf(rows, width));
  return <div class="chart strip" ref={host} role="img" aria-label={t("alerts.tab.history")} />;
}

/** Neighbouring steps of one alert are one time that it fired. */
function episodesOf(one: Series, subject: string, step: number, end: number): Episode[] {
  const found: Episode[] = [];
  const { alertname: name = "", severity = "" } = one.metric as Record<string, string>;
  for (const [time] of one.values) {
    const last = found[found.length - 1];
    if (last && time - last.end <= step * 1.5) last.end = time;
    else
      found.push({
        key: `${JSON.stringify(one.metric)}${time}`,
        name,
        severity,
        subject,
        start: time,
        end: time,
        isOver: true,
      });
  }
  const last = found[found.length - 1];
  if (last && end - last.end <= step * 1.5) last.isOver = false;
  return found;
}

function Episodes({ episodes }: { episodes: readonly Episode[] }): JSX.Element {
  const now = serverNow();
  const moment = (at: number): string => formatMoment(at, now, spoken.get().code);
  const columns: Column<Episode>[] = [
    nameColumn("alert", t("alerts.alert"), (one) => one.name),
    nameColumn("subject", t("alerts.subject"), (one) => one.subject, { wide: true }),
    { id: "start", title: t("alerts.fired"), cell: (one) => moment(one.start), value: (one) => one.start },
    {
      id: "end",
      title: t("alerts.resolved"),
      cell: (one) => (one.isOver ? moment(one.end) : t("alerts.still")),
      value: (one) => (one.isOver ? one.end : undefined),
    },
    {
      id: "lasted",
      title: t("alerts.lasted"),
      number: true,
      cell: (one) => formatDuration(one.end - one.start),
      value: (one) => one.end - one.start,
    },
  ];
  return (
    <section class="section">
      <DataTable
        name={t("alerts.tab.history")}
        rows={episodes}
        columns={columns}
        keyOf={(one) => one.key}
        sort="-start"
        empty=""
      />
    </section>
  );
}
