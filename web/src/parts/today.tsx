// What the fleet did in the last day: how many GPUs worked, were held idle, were free, or did not answer. Counts, no
// average: one busy GPU and seven idle ones are one and seven.
import type { JSX } from "preact";
import { queryRange, type Series } from "../api";
import { columnOf, timesOf, type Column } from "../charts/align";
import { t, useLanguage } from "../i18n";
import { serverNow } from "../live";
import { linkTo } from "../router";
import { alignSpan } from "../time";
import { useAsked } from "./asked";
import { TimeTicks } from "./time-ticks";

const HOURS = 24;
const STEP = 900;
const EVERY_MS = 120_000;
const highest = (series: string): string => `max by (instance, uuid) (max_over_time(${series}[${STEP}s]))`;
/** What can be held: GPUs without MIG, and instances. A GPU that is split has no processes of its own. */
const UNITS = highest("gpuscope_gpu_processes");
const UP = highest("gpuscope_gpu_up");
/** The driver gives no utilisation of a MIG instance; its SM activity stands for it, as on the map. */
const BUSY = `(${highest("gpuscope_gpu_utilization_ratio")} or ${highest('gpuscope_gpu_sm_active_ratio{uuid=~"MIG-.*"}')})`;
const WORKS = `${BUSY} >= 0.05`;
export const DAY_QUERIES = {
  working: `count(${WORKS})`,
  held: `count((${UNITS} > 0) unless on (instance, uuid) (${WORKS}))`,
  // Where the driver does not list processes, the GPUs that answer.
  all: `count(${UNITS} or ${UP} == 0) or count(${UP})`,
  lost: `count(${UP} == 0)`,
};

interface Day {
  times: number[];
  working: Column;
  held: Column;
  free: Column;
  lost: Column;
}

async function fetchDay(signal: AbortSignal): Promise<Day> {
  const now = serverNow();
  const span = alignSpan({ start: now - HOURS * 3600, end: now }, STEP);
  const times = timesOf(span, STEP);
  const ask = async (query: string): Promise<Column> => {
    const [series]: Series[] = await queryRange(query, span.start, span.end, STEP, signal);
    return series ? columnOf(series, span, STEP, times.length) : new Array<number | null>(times.length).fill(null);
  };
  const [working, held, all, lost] = await Promise.all([
    ask(DAY_QUERIES.working),
    ask(DAY_QUERIES.held),
    ask(DAY_QUERIES.all),
    ask(DAY_QUERIES.lost),
  ]);
  // A count of nothing is no sample; where the fleet was read it is 0, elsewhere it stays a gap.
  const filled = (column: Column): Column =>
    column.map((value, at) => value ?? ((all[at] ?? null) === null ? null : 0));
  const [worked, gone] = [filled(working), filled(lost)];
  // A GPU that began to work between two of the answers is in both of their counts: it is shown as working.
  const idle = filled(held).map((value, at) =>
    value === null ? null : Math.min(value, Math.max((all[at] ?? 0) - (worked[at] ?? 0) - (gone[at] ?? 0), 0)),
  );
  const free = all.map((value, at) =>
    value === null ? null : Math.max(value - (worked[at] ?? 0) - (idle[at] ?? 0) - (gone[at] ?? 0), 0),
  );
  return { times, working: worked, held: idle, free, lost: gone };
}

const PARTS = ["working", "held", "free", "lost"] as const;
const HEIGHT = 44;

export function Today(): JSX.Element | null {
  useLanguage();
  const { data } = useAsked(fetchDay, "", EVERY_MS);
  if (!data || data.free.every((value) => value === null)) return null;
  const most = Math.max(...data.times.map((_, at) => PARTS.reduce((sum, part) => sum + (data[part][at] ?? 0), 0)), 1);
  const width = 960 / data.times.length;
  const now = serverNow();
  const last = data.times.length - 1 - [...data.free].reverse().findIndex((value) => value !== null);
  const span = { start: data.times[0] ?? now, end: (data.times[data.times.length - 1] ?? now) + STEP };
  const told = PARTS.map((part) => `${t(`today.${part}`)} ${data[part][last] ?? 0}`).join(", ");
  return (
    <figure class="today">
      <svg
        viewBox={`0 0 960 ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${t("today.title")}: ${told}`}
      >
        {PARTS.map((part, place) => (
          <path key={part} class={`today-${part}`} d={areaOf(data, place, most, width)} />
        ))}
      </svg>
      <TimeTicks span={span} />
      <figcaption class="small soft">
        <span>{t("today.title")}</span>
        <span class="series">
          {PARTS.map((part) => (
            <span key={part}>
              <span class={`swatch today-${part}`} aria-hidden="true" /> {t(`today.${part}`)}
            </span>
          ))}
          {data.free.includes(null) && (
            <span>
              <span class="swatch today-gap" aria-hidden="true" /> {t("state.gone")}
            </span>
          )}
        </span>
        <a href={linkTo("fleet", "", { v: "time" })}>{t("fleet.over_time")}</a>
      </figcaption>
    </figure>
  );
}

/** Bars of one part, standing on the parts before it; a gap stays a gap. */
function areaOf(data: Day, place: number, most: number, width: number): string {
  return data.times
    .map((_, at) => {
      const value = data[PARTS[place] ?? "free"][at] ?? null;
      if (value === null || !value) return "";
      const below = PARTS.slice(0, place).reduce((sum, part) => sum + (data[part][at] ?? 0), 0);
      const [bottom, top] = [HEIGHT - (below / most) * HEIGHT, HEIGHT - ((below + value) / most) * HEIGHT];
      return `M${(at * width).toFixed(1)} ${bottom.toFixed(1)}V${top.toFixed(1)}h${width.toFixed(1)}V${bottom.toFixed(1)}z`;
    })
    .join("");
}
