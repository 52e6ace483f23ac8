// Numbers and times as people read them. Absent is never 0: every function takes undefined and answers with a dash.

export const ABSENT = "–";
export type Unit =
  "ratio" | "bytes" | "watts" | "celsius" | "hertz" | "bytes_per_second" | "seconds" | "count" | "per_second";

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const DECIMAL = ["", "k", "M", "G", "T", "P"];

function scale(value: number, base: number, names: readonly string[]): string {
  let power = 0;
  let left = Math.abs(value);
  while (left >= base * 0.99995 && power < names.length - 1) {
    left /= base;
    power += 1;
  }
  const digits = left < 9.995 && power > 0 ? 2 : left < 99.95 && power > 0 ? 1 : 0;
  return `${value < 0 ? "-" : ""}${trim(left.toFixed(power === 0 && left % 1 !== 0 ? 2 : digits))} ${names[power]}`;
}

const trim = (text: string): string => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

export function formatValue(value: number | undefined | null, unit: Unit): string {
  if (value === undefined || value === null || !Number.isFinite(value)) return ABSENT;
  switch (unit) {
    case "ratio": {
      const percent = value * 100;
      return `${percent > 0 && percent < 1 ? percent.toFixed(1) : Math.round(percent)} %`;
    }
    case "bytes":
      return scale(value, 1024, BINARY).trim();
    case "bytes_per_second":
      return `${scale(value, 1000, DECIMAL)}B/s`;
    case "watts":
      return value >= 1000 ? `${trim((value / 1000).toFixed(value < 1e5 ? 2 : 0))} kW` : `${Math.round(value)} W`;
    case "celsius":
      return `${Math.round(value)} °C`;
    case "hertz":
      return `${scale(value, 1000, DECIMAL)}Hz`;
    case "seconds":
      return formatDuration(value);
    case "per_second":
      return `${scale(value, 1000, DECIMAL).trim()}/s`;
    case "count":
      return scale(value, 1000, DECIMAL).trim();
  }
}

/** The two largest units that matter: `3 d 4 h`, `12 min`, `8 s`. */
export function formatDuration(seconds: number | undefined): string {
  if (seconds === undefined || !Number.isFinite(seconds)) return ABSENT;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return pair(whole, 3600, "h", 60, "min");
  return pair(whole, 86400, "d", 3600, "h");
}

function pair(whole: number, large: number, name: string, small: number, smallName: string): string {
  const rest = Math.floor((whole % large) / small);
  return rest ? `${Math.floor(whole / large)} ${name} ${rest} ${smallName}` : `${Math.floor(whole / large)} ${name}`;
}

/** Clock time; with the day when it is another day than `now`. */
export function formatMoment(seconds: number | undefined, now: number, language: string): string {
  if (seconds === undefined || !Number.isFinite(seconds)) return ABSENT;
  const moment = new Date(seconds * 1000);
  const today = new Date(now * 1000);
  const sameDay = moment.toDateString() === today.toDateString();
  return moment.toLocaleString(language, {
    ...(sameDay ? {} : { month: "short", day: "numeric" }),
    ...(moment.getFullYear() === today.getFullYear() ? {} : { year: "numeric" }),
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
  });
}

/** `NVIDIA H100 80GB HBM3` → `H100 80GB HBM3`: the maker says nothing new on a page full of its boards. */
export const shortModel = (model: string): string => model.replace(/^NVIDIA\s+/i, "").replace(/^GeForce\s+/i, "");

/** `0,1,2,5` → `0–2, 5`; indices that are not numbers (MIG) stay as they are. */
export function formatIndices(indices: readonly string[]): string {
  const numbers = indices
    .filter((one) => /^\d+$/.test(one))
    .map(Number)
    .sort((a, b) => a - b);
  const parts: string[] = [];
  for (let at = 0; at < numbers.length;) {
    let last = at;
    while (numbers[last + 1] === (numbers[last] ?? 0) + 1) last += 1;
    parts.push(last - at >= 2 ? `${numbers[at]}–${numbers[last]}` : numbers.slice(at, last + 1).join(", "));
    at = last + 1;
  }
  return [...parts, ...indices.filter((one) => !/^\d+$/.test(one))].join(", ");
}

const collator = new Intl.Collator("en", { numeric: true });
const WHOLE = /^\d{1,9}$/;

/** `gpu-9` before `gpu-10`; plain numbers, which most indices are, without the collator's cost. */
export const naturalOrder = (left: string, right: string): number =>
  WHOLE.test(left) && WHOLE.test(right) ? Number(left) - Number(right) : collator.compare(left, right);
