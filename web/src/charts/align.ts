// Answers of the query API as columns on one time axis. A step without a sample is null, which is drawn as a gap: the
// API leaves such steps out, so a chart that joined what it got would draw lines over them.
import type { Series } from "../api";
import type { Span } from "../time";

export type Column = (number | null)[];

export function timesOf(span: Span, step: number): number[] {
  const count = Math.floor((span.end - span.start) / step + 1e-9) + 1;
  return Array.from({ length: Math.max(count, 1) }, (_, place) => span.start + place * step);
}

export function columnOf(series: Series, span: Span, step: number, length: number): Column {
  const column: Column = new Array<number | null>(length).fill(null);
  for (const [time, text] of series.values) {
    const place = Math.round((time - span.start) / step);
    const value = Number(text);
    if (place >= 0 && place < length && Number.isFinite(value)) column[place] = value;
  }
  return column;
}

/** Samples with nothing beside them: a line would not show them, so they get a point. */
export function isolatedPlaces(column: Column): number[] {
  const places: number[] = [];
  for (let at = 0; at < column.length; at += 1) {
    if (column[at] !== null && (column[at - 1] ?? null) === null && (column[at + 1] ?? null) === null) places.push(at);
  }
  return places;
}

export interface Summary {
  last: number | undefined;
  min: number | undefined;
  max: number | undefined;
}

export function summarise(column: Column): Summary {
  let last: number | undefined;
  let min: number | undefined;
  let max: number | undefined;
  for (const value of column) {
    if (value === null) continue;
    last = value;
    min = min === undefined || value < min ? value : min;
    max = max === undefined || value > max ? value : max;
  }
  return { last, min, max };
}

const FRESH_PLACES = 3;

/** The value at the end of the axis; a series that ended before it has none now. */
export function newest(column: Column): number | undefined {
  return column.slice(-FRESH_PLACES).findLast((value) => value !== null) ?? undefined;
}

export interface Run {
  from: number;
  to: number;
  value: number;
}

/** Neighbouring steps with the same value, as one run; absent steps end it. */
export function runsOf(column: Column): Run[] {
  const runs: Run[] = [];
  let open: Run | undefined;
  column.forEach((value, place) => {
    if (open && value === open.value) open.to = place;
    else if (value === null) open = undefined;
    else runs.push((open = { from: place, to: place, value }));
  });
  return runs;
}

const MAX_SHOWN = Number.MAX_VALUE / 8;

/** The smallest length of an axis at these values. uPlot adds up its ticks: with a length near the precision of a number
 *  (2e-9 at 8388608) a tick would not be larger than the one before it, and the loop would not end. */
const leastLength = (...values: number[]): number => Math.max(1e-9, 1e-6 * Math.max(...values.map(Math.abs)));

/** The ends of the value axis: a margin around the lowest and the highest value, unless an end is given. */
export function valueRange(
  low: number | null,
  high: number | null,
  least: number | null = null,
  most: number | null = null,
): [number, number] {
  if (low === null || high === null) return [least ?? 0, most ?? (least ?? 0) + 1];
  const [lowest, highest] = [low, high].map((value) => Math.min(Math.max(value, -MAX_SHOWN), MAX_SHOWN)) as [
    number,
    number,
  ];
  // Around a constant the margin is a share of the value, so that the labels of the axis differ.
  const spread = highest > lowest ? highest - lowest : Math.abs(highest);
  const length = Math.max(spread, leastLength(lowest, highest));
  const bottom = least ?? lowest - length * 0.08;
  const top = most ?? highest + Math.max(highest - bottom, length) * 0.06;
  return [bottom, Math.max(top, bottom + leastLength(bottom, top))];
}
