// Numbers and times as people read them. Absent is never 0: every function takes undefined and answers with a dash.

export const ABSENT = "–";

let locale = "en";
let formats = new Map<number, Intl.NumberFormat>();

/** Numbers from now on are those of this locale: `1,234.5`, `1.234,5`, `1 234,5`. */
export function setLocale(next: string): void {
  locale = next;
  formats = new Map();
}

/** With at most so many digits after the point; `fixed` keeps zeros at the end, so that a column stands in line. */
export function localNumber(value: number, digits: number, fixed = false): string {
  const key = fixed ? -digits : digits;
  let format = formats.get(key);
  if (!format) {
    format = new Intl.NumberFormat(locale, {
      maximumFractionDigits: digits,
      ...(fixed ? { minimumFractionDigits: digits } : {}),
    });
    formats.set(key, format);
  }
  return format.format(value);
}

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
  return `${value < 0 ? "-" : ""}${localNumber(left, power === 0 && left % 1 !== 0 ? 2 : digits)} ${names[power]}`;
}

export function formatValue(value: number | undefined | null, unit: Unit): string {
  if (value === undefined || value === null || !Number.isFinite(value)) return ABSENT;
  switch (unit) {
    case "ratio": {
      const percent = value * 100;
      return `${localNumber(percent, percent > 0 && percent < 1 ? 1 : 0)} %`;
    }
    case "bytes":
      return scale(value, 1024, BINARY).trim();
    case "bytes_per_second":
      return `${scale(value, 1000, DECIMAL)}B/s`;
    case "watts":
      return value >= 1000 ? `${localNumber(value / 1000, value < 1e5 ? 2 : 0)} kW` : `${localNumber(value, 0)} W`;
    case "celsius":
      return `${localNumber(value, 0)} °C`;
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

/** GPU-hours and the like: always one digit below a hundred, none above. */
export function formatHours(hours: number | undefined | null): string {
  if (hours === undefined || hours === null || !Number.isFinite(hours)) return ABSENT;
  // Little is not nothing.
  if (hours > 0 && hours < 0.05) return `<${localNumber(0.1, 1, true)}`;
  return Math.abs(hours) < 99.95 ? localNumber(hours, 1, true) : localNumber(hours, 0);
}

type TimeUnit = "second" | "minute" | "hour" | "day";
const SYMBOLS: Record<TimeUnit, string> = { second: "s", minute: "min", hour: "h", day: "d" };
/** Languages that write their own words for hours and minutes; the others take the symbols. */
const hasUnitWords = (): boolean => /^(ko|ja|zh)/.test(locale);

function timeUnit(count: number, unit: TimeUnit): string {
  if (!hasUnitWords()) return `${count} ${SYMBOLS[unit]}`;
  return new Intl.NumberFormat(locale, { style: "unit", unit, unitDisplay: "short" }).format(count);
}

/** The two largest units that matter: `3 d 4 h`, `12 min`, `8 s`. */
export function formatDuration(seconds: number | undefined): string {
  if (seconds === undefined || !Number.isFinite(seconds)) return ABSENT;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return timeUnit(whole, "second");
  if (whole < 3600) return timeUnit(Math.floor(whole / 60), "minute");
  if (whole < 86400) return pair(whole, 3600, "hour", 60, "minute");
  return pair(whole, 86400, "day", 3600, "hour");
}

function pair(whole: number, large: number, name: TimeUnit, small: number, smallName: TimeUnit): string {
  const rest = Math.floor((whole % large) / small);
  const first = timeUnit(Math.floor(whole / large), name);
  return rest ? `${first} ${timeUnit(rest, smallName)}` : first;
}

/** A length as the address has it, `6h` or `30d`: as it is, or in the words of the language. */
export function formatLength(text: string): string {
  const match = /^(\d+)([smhd])$/.exec(text);
  if (!match || !hasUnitWords()) return text;
  return timeUnit(Number(match[1]), ({ s: "second", m: "minute", h: "hour", d: "day" } as const)[match[2] as "s"]);
}

/** From one moment to another; both with the day where one of them is of another day than `now`. */
export function formatRange(start: number, end: number, now: number, language: string): string {
  const isToday = (at: number): boolean => new Date(at * 1000).toDateString() === new Date(now * 1000).toDateString();
  const from = isToday(start) && isToday(end) ? now : NaN;
  return [start, end].map((at) => formatMoment(at, from, language, false)).join(" – ");
}

/** Clock time; with the day when it is another day than `now`. */
export function formatMoment(seconds: number | undefined, now: number, language: string, withSeconds = true): string {
  if (seconds === undefined || !Number.isFinite(seconds)) return ABSENT;
  const moment = new Date(seconds * 1000);
  const today = new Date(now * 1000);
  const sameDay = moment.toDateString() === today.toDateString();
  return moment.toLocaleString(language, {
    ...(sameDay ? {} : { month: "short", day: "numeric" }),
    ...(moment.getFullYear() === (today.getFullYear() || moment.getFullYear()) ? {} : { year: "numeric" }),
    hour: "2-digit",
    minute: "2-digit",
    ...(withSeconds ? { second: "2-digit" } : {}),
    hourCycle: "h23",
  });
}

const tickFormats = new Map<string, Intl.DateTimeFormat>();
const TIME: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

/** A moment on a time axis whose ticks are `spacing` seconds apart: the day where it begins, else the clock. */
export function formatTick(seconds: number, spacing: number, language: string): string {
  const moment = new Date(seconds * 1000);
  const isDay = spacing >= 86400 || (moment.getHours() === 0 && moment.getMinutes() === 0);
  const key = `${language}${isDay ? "day" : spacing < 60}`;
  let format = tickFormats.get(key);
  if (!format) {
    format = new Intl.DateTimeFormat(
      language,
      isDay ? { month: "short", day: "numeric" } : { ...TIME, ...(spacing < 60 ? { second: "2-digit" } : {}) },
    );
    tickFormats.set(key, format);
  }
  return format.format(moment);
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

/** A clause of the server as a sentence of its own. A name at its front (`node-1: …`, `idle_held …`) stays as it is. */
export function toSentence(clause: string): string {
  const begun = /^[a-z]+ /.test(clause) ? clause.charAt(0).toUpperCase() + clause.slice(1) : clause;
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}

/** `gpu-9` before `gpu-10`; plain numbers, which most indices are, without the collator's cost. */
export const naturalOrder = (left: string, right: string): number =>
  WHOLE.test(left) && WHOLE.test(right) ? Number(left) - Number(right) : collator.compare(left, right);
