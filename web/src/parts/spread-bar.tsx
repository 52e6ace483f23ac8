// Shares of several GPUs as one tick each on a bar, with the lowest and the highest said: an average would hide that only
// one of eight works.
import type { JSX } from "preact";
import { ABSENT, formatValue } from "../format";
import { t } from "../i18n";

export function SpreadBar({ values }: { values: readonly number[] }): JSX.Element {
  const [low] = values;
  const high = values[values.length - 1];
  if (low === undefined || high === undefined) return <span title={t("gpu.absent")}>{ABSENT}</span>;
  const ticks = values.map((value) => `M${(1 + Math.min(Math.max(value, 0), 1) * 58).toFixed(1)} 1V9`).join("");
  const text =
    values.length === 1 || formatValue(low, "ratio") === formatValue(high, "ratio")
      ? formatValue(high, "ratio")
      : `${formatValue(low, "ratio")} – ${formatValue(high, "ratio")}`;
  return (
    <span class="spread">
      <svg viewBox="0 0 60 10" width="60" height="10" aria-hidden="true">
        <path d="M1 9.5H59" stroke="var(--line-strong)" />
        <path d={ticks} stroke="var(--ink-soft)" stroke-width="2" />
      </svg>{" "}
      {text}
    </span>
  );
}
