// Reservations on a time axis from now on: one bar each, with a line for now. The same as text beside each bar.
import { Fragment, type JSX } from "preact";
import { formatMoment } from "../format";
import { t, useLanguage } from "../i18n";
import { serverNow } from "../live";
import type { Reservation } from "../slurm";
import { Name } from "./marks";
import { TimeTicks } from "./time-ticks";

/** Slurm's lists with a space after each comma; a list of nodes stays as it is: `gpu-[01,03]`. */
const spaced = (list: string): string => list.replaceAll(",", ", ");

const whoAndWhere = ({ users, accounts, partition, nodes, flags }: Reservation): string[] =>
  [spaced(users), spaced(accounts), partition, nodes, spaced(flags)].filter(Boolean);

const LEAST_SECONDS = 86400;

export function ReservationAxis({ reservations }: { reservations: readonly Reservation[] }): JSX.Element {
  const language = useLanguage();
  const now = serverNow();
  if (!reservations.length) return <p class="soft">{t("slurm.no_reservations")}</p>;
  const starts = reservations.map((one) => one.start ?? now);
  const ends = reservations.map((one) => one.end ?? now);
  const from = Math.min(now - 3600, ...starts);
  const to = Math.max(now + LEAST_SECONDS, ...ends);
  const place = (at: number): number => (Math.min(Math.max(at, from), to) - from) / (to - from);
  return (
    <div class="axis">
      <TimeTicks span={{ start: from, end: to }} />
      <ul>
        {reservations.map((one) => {
          const [left, right] = [place(one.start ?? from), place(one.end ?? to)];
          return (
            <li key={one.name}>
              <div class="axis-text">
                <b>
                  <Name text={one.name} />
                </b>{" "}
                <span class="soft">
                  {formatMoment(one.start, now, language, false)} – {formatMoment(one.end, now, language, false)}
                  {" · "}
                  {one.active ? t("slurm.active") : t("slurm.planned")}
                  {one.gpus === undefined ? "" : ` · ${t("count.gpus", { count: one.gpus })}`}
                </span>
                {whoAndWhere(one).map((part) => (
                  <Fragment key={part}>
                    <span class="soft"> · </span>
                    <Name text={part} />
                  </Fragment>
                ))}
              </div>
              <svg viewBox="0 0 1000 16" preserveAspectRatio="none" aria-hidden="true">
                <path d="M0 15.5H1000" stroke="var(--line)" />
                <rect
                  x={left * 1000}
                  y="3"
                  width={Math.max((right - left) * 1000, 3)}
                  height="11"
                  fill={one.active ? "var(--fill)" : "var(--fill-soft)"}
                  stroke="var(--line-strong)"
                />
                <path d={`M${place(now) * 1000} 0V16`} stroke="var(--accent)" stroke-width="2" />
              </svg>
            </li>
          );
        })}
      </ul>
      <p class="soft small">{t("slurm.axis_key")}</p>
    </div>
  );
}
