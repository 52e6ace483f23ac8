// Small marks used on several views: a state's glyph and swatch, the rug of single values, a name from outside.
import type { JSX } from "preact";
import type { GpuState } from "../live";
import type { Spread } from "../fleet";
import { formatValue } from "../format";
import { t, tName } from "../i18n";

/** Read without colour and in every language. */
export const GLYPHS: Record<GpuState, string> = {
  lost: "✕",
  gone: "∅",
  stale: "◌",
  sick: "!",
  throttled: "▾",
  held: "z",
  allocated: "·",
  busy: "",
  idle: "",
};

export function Swatch({ state }: { state: GpuState }): JSX.Element {
  return <span class="swatch" data-s={state} aria-hidden="true" />;
}

export const stateName = (state: string): string => tName("state", state);

/** A name from outside: isolated, so that right-to-left marks in it do not turn the rest of the line. */
export function Name({ text }: { text: string }): JSX.Element {
  return <bdi>{text}</bdi>;
}

export const spreadText = (spread: Spread): string =>
  t("fleet.spread_text", {
    min: formatValue(spread.min, "ratio"),
    median: formatValue(spread.median, "ratio"),
    max: formatValue(spread.max, "ratio"),
  });

/** One tick for each GPU between 0 and 100 %: spread is seen, not averaged away. One path, however many GPUs. */
export function Rug({ spread }: { spread: Spread }): JSX.Element {
  const ticks = spread.values.map((value) => `M${(1 + value * 118).toFixed(1)} 1V11`).join("");
  return (
    <svg class="rug" viewBox="0 0 120 12" preserveAspectRatio="none" role="img" aria-label={spreadText(spread)}>
      <path d="M1 11.5H119" stroke="currentColor" stroke-width="1" opacity="0.5" />
      <path d={ticks} stroke="currentColor" stroke-width="2" opacity="0.55" />
    </svg>
  );
}

const BINS = 20;

/** How many GPUs are how busy. */
export function Distribution({ spread }: { spread: Spread }): JSX.Element {
  const counts = new Array<number>(BINS).fill(0);
  for (const value of spread.values) {
    const bin = Math.min(Math.floor(value * BINS), BINS - 1);
    counts[bin] = (counts[bin] ?? 0) + 1;
  }
  const most = Math.max(...counts);
  const bars = counts
    .map((count, bin) =>
      count ? `M${bin * 12 + 1} 33V${(33 - Math.max((count / most) * 31, 2)).toFixed(1)}h10V33z` : "",
    )
    .join("");
  return (
    <svg viewBox="0 0 240 34" role="img" aria-label={spreadText(spread)}>
      <path d="M0 33.5H240" stroke="var(--line-strong)" />
      <path d={bars} fill="var(--fill)" />
    </svg>
  );
}
