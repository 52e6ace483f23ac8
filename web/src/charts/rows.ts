// Rows of a strip: what was active when. In: answers of the query API. Out: rows that the strip paints; rows in which
// nothing ever happened are left out, or nine throttle reasons would hide the one that matters.
import type { Series } from "../api";
import { naturalOrder } from "../format";
import { tName } from "../i18n";
import { fillLegend, type Panel } from "../panels";
import type { Span } from "../time";
import { columnOf, type Column } from "./align";
import type { Mark, StripRow } from "./plot";

const SEVERE_REASONS = ["hw_thermal_slowdown", "hw_slowdown", "hw_power_brake_slowdown"];
const ACT_REASONS = ["sw_thermal_slowdown", "sync_boost"];
const MOST_ROWS = 24;

/** `length` columns, `step` seconds apart, from the start of the span. */
type MakeRows = (panel: Panel, results: readonly Series[][], span: Span, step: number, length: number) => StripRow[];

export const stateRows: MakeRows = (panel, results, span, step, length) => {
  if (panel.kind === "events") return eventRows(panel, results, span, step, length);
  return results.flatMap((series, place) =>
    series.flatMap((one) => {
      const column = columnOf(one, span, step, length);
      const reason = one.metric["reason"];
      if (reason === undefined) return [valueRow(panel.queries[place]?.legend ?? "", column)];
      if (!column.some((value) => value !== null && value > 0)) return [];
      const named = { ...one.metric, reason: tName("why", reason) };
      return [reasonRow(fillLegend(panel.queries[place]?.legend ?? "", named), reason, column)];
    }),
  );
};

function reasonRow(name: string, reason: string, column: Column): StripRow {
  const colour = SEVERE_REASONS.includes(reason) ? "severe" : ACT_REASONS.includes(reason) ? "act" : "neutral";
  return { name, column, look: (value) => (value > 0 ? { colour } : undefined) };
}

/** A row whose value is the state itself, such as P0 to P15. */
function valueRow(prefix: string, column: Column): StripRow {
  return {
    name: "",
    column,
    look: (value) => ({ colour: value <= 2 ? "neutral" : "soft", text: `${prefix}${value}` }),
  };
}

const eventRows: MakeRows = (panel, results, span, step, length) => {
  const marks = eventsOf(panel, results, span);
  return [...new Set(marks.map((mark) => mark.name))].map((name) => {
    const column: Column = new Array<number | null>(length).fill(null);
    for (const mark of marks) {
      const place = Math.round((mark.at - span.start) / step);
      if (mark.name === name && place >= 0 && place < length) column[place] = 1;
    }
    return { name, column, look: () => ({ colour: "severe" as const }) };
  });
};

/** Events by their own time: a series whose value is a time stamp tells each event once, however often it was stored. */
export function eventsOf(panel: Panel, results: readonly Series[][], span: Span): Mark[] {
  const marks: Mark[] = [];
  results.forEach((series, place) => {
    const query = panel.queries[place];
    for (const one of series) {
      const name = fillLegend(query?.legend ?? "", one.metric);
      const times =
        query?.value === "timestamp"
          ? new Set(one.values.map(([, text]) => Number(text)))
          : new Set(firstOfRuns(one.values.map(([time]) => time)));
      for (const at of times) if (at >= span.start && at <= span.end) marks.push({ at, name });
    }
  });
  return marks.sort((left, right) => left.at - right.at);
}

/** Counted errors come as a row of steps; the first of each row is when it began. */
function firstOfRuns(times: readonly number[]): number[] {
  const step = Math.min(...times.slice(1).map((time, place) => time - (times[place] ?? 0)));
  return times.filter((time, place) => place === 0 || time - (times[place - 1] ?? 0) > step * 1.5);
}

/** One row for each series, as high as its value: eight GPUs under each other instead of eight lines over each other. */
export const levelRows: MakeRows = (panel, results, span, step, length) => {
  const most = panel.max ?? 1;
  return results.flatMap((series, place) =>
    series
      .map((one) => ({
        one,
        name: panel.nameOf?.(one.metric) ?? fillLegend(panel.queries[place]?.legend ?? "", one.metric),
      }))
      .sort((left, right) => naturalOrder(left.name, right.name))
      .map(({ one, name }) => ({
        name,
        column: columnOf(one, span, step, length),
        beside: true,
        look: (value: number) => ({ colour: "neutral" as const, share: Math.min(Math.max(value / most, 0), 1) }),
      })),
  );
};

/** One row for each process that held memory, the longest first; darker while it worked. */
export const spanRows: MakeRows = (panel, results, span, step, length) => {
  const [held = [], worked = []] = results;
  const working = new Map(worked.map((one) => [one.metric["pid"], columnOf(one, span, step, length)]));
  return [...held]
    .sort((left, right) => (left.values[0]?.[0] ?? 0) - (right.values[0]?.[0] ?? 0))
    .slice(-MOST_ROWS)
    .map((one) => {
      const sm = working.get(one.metric["pid"]);
      const column = columnOf(one, span, step, length).map((value, place) =>
        value === null ? null : (sm?.[place] ?? 0) > 0.05 ? 1 : 0,
      );
      const name = fillLegend(panel.queries[0]?.legend ?? "", one.metric)
        .replace(/\s+/g, " ")
        .trim();
      return { name, column, look: (value) => ({ colour: value > 0 ? ("neutral" as const) : ("soft" as const) }) };
    });
};
