// The time range all panels of a view share: one span for all, so that their axes stand under each other. It moves on
// while the range follows now. Also how far samples are apart in it, for windows that hold at least one or two.
import { queryRange } from "./api";
import { live, serverNow } from "./live";
import { changeQuery, route } from "./router";
import { createStore } from "./store";
import { absolute, chooseStep, follows, readRange, resolveRange, type Range, type Span } from "./time";

export interface Timeline {
  range: Range;
  span: Span;
  /** Seconds between samples here; undefined until it is known. */
  interval?: number;
  /** No sample at all in the range. */
  empty?: boolean;
}

const PIXELS = 900;
const PROBE_SECONDS = 600;
const PROBES = 12;
const DEFAULT_INTERVAL = 15;

const first = readRange({});
export const timeline = createStore<Timeline>({ range: first, span: resolveRange(first, Date.now() / 1000) });

export function startTimeline(): void {
  const read = (): void => {
    const range = readRange(route.get().query);
    const current = timeline.get();
    if (range.from === current.range.from && range.to === current.range.to) return;
    timeline.set({ range, span: resolveRange(range, serverNow()) });
    void probe();
  };
  route.subscribe(read);
  read();
  // The first picture brings the server's clock; what was asked for before it may have been another hour.
  const stop = live.subscribe((state) => {
    if (state.status !== "ok") return;
    stop();
    refresh();
    void probe();
  });
  schedule();
}

function schedule(): void {
  const { span, range } = timeline.get();
  const pause = Math.min(Math.max(chooseStep(span.end - span.start, PIXELS), 5), 60);
  setTimeout(() => {
    if (follows(range) && !document.hidden && live.get().status === "ok") refresh();
    schedule();
  }, pause * 1000);
}

/** Asks for everything anew, with now as now. */
export function refresh(): void {
  const current = timeline.get();
  timeline.set({ ...current, span: resolveRange(current.range, serverNow()) });
}

export function showSpan(span: Span): void {
  changeQuery({ ...absolute(span) }, true);
}

export function showRange(range: Range): void {
  changeQuery({ ...range }, true);
}

/** How far samples are apart: a demo's history is coarser than what was collected since, a Prometheus may ask once a
 * minute. Without this a window would be empty between two samples, and gaps would be drawn that are none. */
async function probe(): Promise<void> {
  const { range, span } = timeline.get();
  const step = Math.max(Math.round((span.end - span.start) / PROBES), 1);
  let spacing: number[] = [];
  let answered = false;
  try {
    const series = await queryRange(
      `${PROBE_SECONDS} / max(count_over_time(gpuscope_gpus_seen[${PROBE_SECONDS}s]))`,
      span.start,
      span.end,
      step,
    );
    spacing = (series[0]?.values ?? []).map(([, value]) => Number(value)).filter(Number.isFinite);
    answered = true;
  } catch {
    // The panels will say what is wrong, each for itself.
  }
  if (timeline.get().range !== range) return;
  const empty = answered && !spacing.length;
  timeline.set({ ...timeline.get(), interval: toInterval(spacing), empty });
}

/** The coarsest spacing but for the edges, where a window is half empty. */
export function toInterval(spacing: readonly number[]): number {
  const sorted = spacing.filter((one) => one <= PROBE_SECONDS / 2).sort((a, b) => b - a);
  return sorted[sorted.length > 4 ? 1 : 0] ?? DEFAULT_INTERVAL;
}

export interface Windows {
  window: string;
  rate: string;
}

/** A gauge's window covers a step and one sample; a rate needs two, and one to spare. */
export function windowsFor(step: number, interval: number): Windows {
  const window = Math.ceil(Math.max(step, interval * 1.6));
  const rate = Math.ceil(Math.max(step + interval, interval * 3.2));
  return { window: `${window}s`, rate: `${rate}s` };
}
