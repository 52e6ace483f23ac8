// Where the hours went: one bar for the whole period, and one for each part of it. Drawn as SVG with the numbers as text.
import type { JSX } from "preact";
import { formatDuration, formatHours } from "../format";
import { t, useLanguage } from "../i18n";
import { PARTS, type Report, type ReportBucket } from "../reports";
import { TimeTicks } from "./time-ticks";

export function PartsBar({ report }: { report: Report }): JSX.Element {
  const { invariant } = report;
  const all = invariant.gpu_hours || 1;
  let left = 0;
  return (
    <section class="parts" aria-label={t("reports.where")}>
      <svg viewBox="0 0 1000 18" preserveAspectRatio="none" aria-hidden="true">
        {PARTS.map((part) => {
          const width = (invariant[part] / all) * 1000;
          const x = left;
          left += width;
          return <rect key={part} x={x} y="0" width={Math.max(width, 0)} height="18" class={`part-${part}`} />;
        })}
      </svg>
      <ul class="series">
        <li>
          <b>{t("unit.gpu_hours", { hours: formatHours(invariant.gpu_hours) })}</b> =
        </li>
        {PARTS.map((part) => (
          <li key={part}>
            <span class={`swatch part-${part}`} aria-hidden="true" />{" "}
            {t("count.state", { count: formatHours(invariant[part]), state: t(`part.${part}`) })}
          </li>
        ))}
      </ul>
    </section>
  );
}

const HEIGHT = 120;
const STACK = ["busy", "idle", "unknown", "free", "lost"] as const;

export function HourPlot({ report, before }: { report: Report; before?: Report }): JSX.Element {
  useLanguage();
  const most = Math.max(...[...report.buckets, ...(before?.buckets ?? [])].map(heightOf), 1e-9);
  const line = before ? lineOf(before, most) : "";
  const seconds = Math.max(...report.buckets.map((one) => one.end - one.start), 0);
  return (
    <figure class="panel section">
      <p class="small soft">{t("reports.axis", { length: formatDuration(seconds), hours: formatHours(most) })}</p>
      <svg
        class="hours"
        viewBox={`0 0 1000 ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={t("reports.plot")}
      >
        {report.buckets.map((bucket, at) => {
          let top = HEIGHT;
          return STACK.map((part) => {
            const high = (bucket[part] / most) * HEIGHT;
            top -= high;
            return (
              <rect
                key={`${at}${part}`}
                x={placeOf(report, bucket.start) + 0.5}
                y={top}
                width={Math.max(placeOf(report, bucket.end) - placeOf(report, bucket.start) - 1, 0.5)}
                height={high}
                class={`hour-${part}`}
              />
            );
          });
        })}
        {line && <path d={line} class="hour-before" />}
      </svg>
      <TimeTicks span={report} />
      <figcaption>
        <ul class="series">
          {STACK.map((part) => (
            <li key={part}>
              <span class={`swatch hour-${part}`} aria-hidden="true" /> {t(`hours.${part}`)}
            </li>
          ))}
          {line && (
            <li>
              <i style={{ "--c": "var(--accent)" }} /> {t("reports.before_held")}
            </li>
          )}
        </ul>
      </figcaption>
    </figure>
  );
}

/** By time: a day is shorter or longer when the clocks are changed. */
const placeOf = ({ start, end }: Report, at: number): number => (1000 * (at - start)) / (end - start || 1);

/** Hours that were held; a part of the period in which nothing was read is a gap. */
const lineOf = (report: Report, most: number): string =>
  report.buckets
    .map((one, at) => {
      if (!heightOf(one)) return "";
      const previous = report.buckets[at - 1];
      const isFirst = !previous || !heightOf(previous);
      const y = HEIGHT - ((one.busy + one.idle + one.unknown) / most) * HEIGHT;
      return `${isFirst ? "M" : "L"}${placeOf(report, one.start)} ${y}H${placeOf(report, one.end)}`;
    })
    .join("");

const heightOf = (one: ReportBucket): number => one.busy + one.idle + one.unknown + one.free + one.lost;
