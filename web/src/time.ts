// Time ranges: what the address says (`now-6h`, or seconds since the epoch), what that is in numbers, and which step
// suits a number of pixels. Every "now" here is the server's: a browser whose clock is wrong still sees its data.

export interface Range {
  from: string;
  to: string;
}
export interface Span {
  start: number;
  end: number;
}

export const DEFAULT_RANGE: Range = { from: "now-1h", to: "now" };
export const RELATIVE = ["15m", "1h", "3h", "6h", "12h", "24h", "2d", "7d", "30d"] as const;
const UNITS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
const STEPS = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const LEAST_SPAN = 10;

export function parseDuration(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?)([smhdw])$/.exec(text.trim());
  return match ? Number(match[1]) * (UNITS[match[2] ?? ""] ?? 0) : undefined;
}

function parseMoment(text: string, now: number): number | undefined {
  if (text === "now") return now;
  if (text.startsWith("now-")) {
    const back = parseDuration(text.slice(4));
    return back === undefined ? undefined : now - back;
  }
  return /^\d+(\.\d+)?$/.test(text) ? Number(text) : undefined;
}

/** A range from the address; nonsense there gives the default, never a blank page. */
export function readRange(query: Readonly<Record<string, string>>): Range {
  const range = { from: query["from"] ?? DEFAULT_RANGE.from, to: query["to"] ?? DEFAULT_RANGE.to };
  const start = parseMoment(range.from, 1e10);
  const end = parseMoment(range.to, 1e10);
  return start === undefined || end === undefined || end <= start ? DEFAULT_RANGE : range;
}

export function resolveRange(range: Range, now: number): Span {
  const end = parseMoment(range.to, now) ?? now;
  const start = parseMoment(range.from, now) ?? end - 3600;
  return { start, end: Math.max(end, start + LEAST_SPAN) };
}

export const follows = (range: Range): boolean => range.to === "now";

/** The length of a range that ends now, such as `6h`; otherwise undefined. */
export function relativeLength(range: Range): string | undefined {
  return follows(range) && range.from.startsWith("now-") ? range.from.slice(4) : undefined;
}

export function absolute(span: Span): Range {
  return { from: String(Math.round(span.start)), to: String(Math.round(span.end)) };
}

/** Moves a span by a share of its length; never beyond now, where nothing can be. */
export function pan(span: Span, share: number, now: number): Span {
  const length = span.end - span.start;
  const end = Math.min(span.end + length * share, now);
  return { start: end - length, end };
}

export function zoom(span: Span, factor: number, now: number): Span {
  const length = Math.max((span.end - span.start) * factor, LEAST_SPAN);
  const end = Math.min((span.start + span.end + length) / 2, now);
  return { start: end - length, end };
}

/** One point for about two pixels: no answer grows with the history behind it. */
export function chooseStep(seconds: number, pixels: number): number {
  const wanted = seconds / Math.max(pixels / 2, 50);
  return STEPS.find((step) => step >= wanted) ?? Math.ceil(wanted / 86400) * 86400;
}

/** Aligned to the step, so that a picture that follows now does not shimmer. */
export function alignSpan(span: Span, step: number): Span {
  return { start: Math.floor(span.start / step) * step, end: Math.ceil(span.end / step) * step };
}

const HOUR = 3600;
const TICK_STEPS = [300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR, 48 * HOUR, 168 * HOUR, 720 * HOUR];

/** Round moments of the local clock within the span, and how far they are apart. */
export function ticksOf(span: Span, most: number): { ticks: number[]; step: number } {
  const step = TICK_STEPS.find((one) => (span.end - span.start) / one <= most) ?? 720 * HOUR;
  const offset = new Date(span.start * 1000).getTimezoneOffset() * 60;
  const ticks: number[] = [];
  for (let at = Math.ceil((span.start - offset) / step) * step + offset; at <= span.end; at += step) ticks.push(at);
  return { ticks, step };
}
