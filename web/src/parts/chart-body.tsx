// The drawing inside a panel, by kind: lines, strips of states, marks of events, spans of processes. Each comes with
// the same numbers as a table for screen readers.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Series } from "../api";
import { columnOf, newest, summarise, timesOf } from "../charts/align";
import {
  drawLines,
  drawStrip,
  type Chart,
  type Line,
  type LineOptions,
  type Mark,
  type PlotOptions,
  type StripOptions,
  type StripRow,
} from "../charts/plot";
import { eventsOf, levelRows, spanRows, stateRows } from "../charts/rows";
import { formatMoment, formatTick, formatValue, naturalOrder } from "../format";
import { panelTitle, spoken, t, tName } from "../i18n";
import { serverNow } from "../live";
import { fillLegend, type Panel } from "../panels";
import { theme } from "../settings";
import { useStore } from "../store";
import { zoom } from "../time";
import { showSpan, timeline } from "../timeline";
import type { Answer } from "./panel";

const HEIGHT = 168;

interface BodyProps {
  panel: Panel;
  answer: Answer;
  width: number;
  marks: readonly Mark[];
}

export function ChartBody({ panel, answer, width, marks }: BodyProps): JSX.Element {
  if (panel.kind === "lines") return <Lines panel={panel} answer={answer} width={width} marks={marks} />;
  return <Strip panel={panel} answer={answer} width={width} marks={marks} />;
}

function Lines({ panel, answer, width, marks }: BodyProps): JSX.Element {
  const [cursor, setCursor] = useState<number>();
  const times = useMemo(() => timesOf(answer.span, answer.step), [answer]);
  const lines = useMemo(() => linesOf(panel, answer, times.length), [answer, spoken.get().code]);
  const options = useMemo(
    (): LineOptions => ({
      ...plotOptions(times, width, marks, setCursor),
      lines,
      height: HEIGHT,
      ...(panel.min === undefined ? {} : { min: panel.min }),
      ...(panel.max === undefined ? {} : { max: panel.max }),
      formatValue: (value) => formatValue(value, panel.unit),
      binary: panel.unit === "bytes",
    }),
    [lines, width, marks, spoken.get().code],
  );
  const host = usePlot(drawLines, options, shapeOf(lines, width));
  return (
    <>
      <div class="chart" ref={host} role="img" aria-label={panelTitle(panel.id)} />
      <Legend panel={panel} lines={lines} cursor={cursor} />
      <SummaryTable panel={panel} lines={lines} />
    </>
  );
}

export const shapeOf = (columns: readonly { name: string }[], width: number): string =>
  `${width}\n${columns.map((one) => one.name).join("\n")}`;

const byGpu = (left: Series, right: Series): number =>
  naturalOrder(left.metric["gpu"] ?? "", right.metric["gpu"] ?? "");

/** Words of the panels' definition in the reader's language; what comes from the machine as it is. */
function legendText(legend: string, metric: Readonly<Record<string, string>>): string {
  return tName("legend", fillLegend(tName("legend", legend), metric));
}

export function linesOf(panel: Panel, answer: Answer, length: number): Line[] {
  return answer.results.flatMap((series, place) => {
    const query = panel.queries[place];
    return [...series].sort(byGpu).map((one) => ({
      name: panel.nameOf?.(one.metric) ?? (legendText(query?.legend ?? "", one.metric) || t("table.value")),
      column: columnOf(one, answer.span, answer.step, length),
      ...(query?.limit ? { limit: query.limit } : {}),
    }));
  });
}

export function plotOptions(
  times: number[],
  width: number,
  marks: readonly Mark[],
  onCursor: (place: number | undefined) => void,
): PlotOptions {
  return {
    times,
    width,
    marks,
    onCursor,
    formatTime: (seconds, spacing) => formatTick(seconds, spacing, spoken.get().code),
    onZoom: (start, end) => showSpan({ start, end }),
    onWiden: () => showSpan(zoom(timeline.get().span, 2, serverNow())),
  };
}

/** Draws anew when the shape or the colours change; when only the numbers do, the chart takes them as it stands. */
export function usePlot<T>(
  draw: (element: HTMLElement, options: T) => Chart<T>,
  options: T,
  shape: string,
): { current: HTMLDivElement | null } {
  const host = useRef<HTMLDivElement>(null);
  const chart = useRef<Chart<T> | undefined>(undefined);
  const chosen = useStore(theme);
  const dark = useDark();
  const fresh = useRef(false);
  useLayoutEffect(() => {
    if (!host.current) return undefined;
    chart.current = draw(host.current, options);
    fresh.current = true;
    return () => {
      chart.current?.destroy();
      chart.current = undefined;
    };
  }, [shape, chosen, dark]);
  useLayoutEffect(() => {
    if (!fresh.current) chart.current?.update(options);
    fresh.current = false;
  }, [options]);
  return host;
}

function useDark(): boolean {
  const [dark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const read = (): void => setDark(query.matches);
    query.addEventListener("change", read);
    return () => query.removeEventListener("change", read);
  }, []);
  return dark;
}

const MOST_IN_LEGEND = 16;

function Legend({
  panel,
  lines,
  cursor,
}: {
  panel: Panel;
  lines: readonly Line[];
  cursor: number | undefined;
}): JSX.Element {
  return (
    <ul class="series" aria-hidden="true">
      {lines.slice(0, MOST_IN_LEGEND).map((line, place) => {
        const value = cursor === undefined ? newest(line.column) : line.column[cursor];
        const colour = line.limit
          ? { notice: "--ink-soft", warning: "--warn-line", critical: "--crit-line" }[line.limit]
          : `--c${(place % 8) + 1}`;
        return (
          <li key={`${line.name}${place}`}>
            <i class={line.limit ? "limit" : ""} style={{ "--c": `var(${colour})` }} /> <bdi>{line.name}</bdi>
            <b>{formatValue(value, panel.unit)}</b>
          </li>
        );
      })}
    </ul>
  );
}

function SummaryTable({ panel, lines }: { panel: Panel; lines: readonly Line[] }): JSX.Element {
  return (
    <table class="visually-hidden">
      <caption>{panelTitle(panel.id)}</caption>
      <thead>
        <tr>
          <th scope="col">{t("table.series")}</th>
          <th scope="col">{t("table.last")}</th>
          <th scope="col">{t("table.lowest")}</th>
          <th scope="col">{t("table.highest")}</th>
        </tr>
      </thead>
      <tbody>
        {lines.map((line, place) => {
          const { last, min, max } = summarise(line.column);
          return (
            <tr key={place}>
              <th scope="row">
                <bdi>{line.name}</bdi>
              </th>
              <td>{formatValue(last, panel.unit)}</td>
              <td>{formatValue(min, panel.unit)}</td>
              <td>{formatValue(max, panel.unit)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function Strip({ panel, answer, width, marks }: BodyProps): JSX.Element {
  const times = useMemo(() => timesOf(answer.span, answer.step), [answer]);
  const { rows, told } = useMemo(() => rowsFor(panel, answer, times), [answer, spoken.get().code]);
  const shown = useMemo(
    () => (panel.kind === "events" ? eventsOf(panel, answer.results, answer.span) : marks),
    [answer, marks],
  );
  const options = useMemo(
    (): StripOptions => ({ ...plotOptions(times, width, shown, () => undefined), rows }),
    [rows, width, shown],
  );
  const host = usePlot(drawStrip, options, shapeOf(rows, width));
  if (!rows.length)
    return <div class="message brief">{panel.kind === "events" ? t("panel.no_events") : t("panel.never")}</div>;
  return (
    <>
      <div class="chart strip" ref={host} role="img" aria-label={`${panelTitle(panel.id)}: ${told.join("; ")}`} />
      {panel.kind === "events" && <EventList marks={shown} />}
    </>
  );
}

function rowsFor(panel: Panel, answer: Answer, times: number[]): { rows: StripRow[]; told: string[] } {
  const make = { spans: spanRows, levels: levelRows, states: stateRows, events: stateRows, lines: stateRows }[
    panel.kind
  ];
  const rows = make(panel, answer.results, answer.span, answer.step, times.length);
  return { rows, told: rows.map((row) => row.name) };
}

const MOST_EVENTS = 12;

function EventList({ marks }: { marks: readonly Mark[] }): JSX.Element {
  const now = serverNow();
  return (
    <ul class="series">
      {marks.slice(-MOST_EVENTS).map((mark, place) => (
        <li key={place}>
          <b class="crit">{mark.name}</b> {formatMoment(mark.at, now, spoken.get().code)}
        </li>
      ))}
    </ul>
  );
}
