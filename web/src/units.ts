// The unit of a query's values: what the metric's metadata says, else the end of its name, as Prometheus' rules want it.
// A function that changes the unit (rate of a counter of bytes, a count) is seen by its name; anything else is a number.
import type { MetricHelp } from "./api";
import type { Unit } from "./format";

const BY_NAME: readonly [RegExp, Unit][] = [
  [/ratio$/, "ratio"],
  [/bytes_per_second$/, "bytes_per_second"],
  [/bytes$/, "bytes"],
  [/watts$/, "watts"],
  [/celsius$/, "celsius"],
  [/hertz$/, "hertz"],
  [/timestamp_seconds$/, "count"],
  [/seconds$/, "seconds"],
];
/** Per second: what a rate makes of the unit of its counter. */
const RATES: Partial<Record<Unit, Unit>> = { bytes: "bytes_per_second", count: "per_second", seconds: "ratio" };
const KEEPS =
  /^(sum|avg|min|max|topk|bottomk|quantile|sort|sort_desc|abs|ceil|floor|round|clamp\w*|(avg|min|max|sum|last|quantile)_over_time|increase|delta|idelta|label_replace|label_join)$/;
const PER_SECOND = /^(rate|irate|deriv)$/;

export function unitOf(expression: string, metadata: Readonly<Record<string, readonly MetricHelp[]>> = {}): Unit {
  const plain = expression
    .replace(/"(?:[^"\\]|\\.)*"/g, '""')
    .replace(/\{[^{}]*\}|\[[^[\]]*\]/g, "")
    .replace(/\b(by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)/g, " ");
  const single = plain.replace(/\*\s*[A-Za-z_:][\w:]*_info\b/g, ""); // a join with an info series, whose value is 1
  // Two metrics, or arithmetic between them: what comes out is nobody's unit.
  const names = [...single.matchAll(/[A-Za-z_:][\w:]*(?!\w|\s*\()/g)]
    .map((match) => match[0])
    .filter((name) => !/^(and|or|unless|bool|offset|by|without)$/.test(name));
  if (names.length !== 1 || /[-+*/%^]|[<>=!]=?\s*bool/.test(single.replace(/offset\s*-?/g, ""))) return "count";
  const calls = [...single.matchAll(/([A-Za-z_]\w*)\s*\(/g)].map((match) => match[1] ?? "");
  let unit = metricUnit(names[0] ?? "", metadata);
  for (const call of calls.reverse()) {
    if (PER_SECOND.test(call)) unit = unit === "watts" ? "watts" : (RATES[unit] ?? "per_second");
    else if (!KEEPS.test(call)) return "count";
  }
  return unit;
}

function metricUnit(name: string, metadata: Readonly<Record<string, readonly MetricHelp[]>>): Unit {
  const base = name.replace(/_(total|sum|bucket)$/, "");
  const told = metadata[name]?.[0]?.unit || metadata[base]?.[0]?.unit || "";
  if (/joules$/.test(told || base)) return "count";
  for (const text of [told, base]) {
    const found = BY_NAME.find(([end]) => end.test(text));
    if (found && text) return found[1];
  }
  return "count";
}
