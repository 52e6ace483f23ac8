// What may stand at the cursor of a PromQL text: a metric or function, a label name within braces or `by (…)`, or a
// label's value within quotes. No parser: the text is unfinished by nature, so it is read backwards from the cursor.

export const FUNCTIONS = [
  "abs",
  "absent",
  "absent_over_time",
  "avg_over_time",
  "ceil",
  "changes",
  "clamp",
  "clamp_max",
  "clamp_min",
  "count_over_time",
  "day_of_week",
  "delta",
  "deriv",
  "exp",
  "floor",
  "histogram_quantile",
  "hour",
  "idelta",
  "increase",
  "irate",
  "label_join",
  "label_replace",
  "last_over_time",
  "ln",
  "log10",
  "log2",
  "max_over_time",
  "min_over_time",
  "minute",
  "month",
  "predict_linear",
  "present_over_time",
  "quantile_over_time",
  "rate",
  "resets",
  "round",
  "scalar",
  "sgn",
  "sort",
  "sort_desc",
  "sqrt",
  "stddev_over_time",
  "stdvar_over_time",
  "sum_over_time",
  "time",
  "timestamp",
  "vector",
  "year",
];
export const AGGREGATIONS = [
  "avg",
  "bottomk",
  "count",
  "count_values",
  "group",
  "max",
  "min",
  "quantile",
  "stddev",
  "stdvar",
  "sum",
  "topk",
];
const MODIFIERS = ["by", "without", "on", "ignoring", "group_left", "group_right"];

export type Place =
  | { kind: "name"; word: string; from: number }
  | { kind: "label"; word: string; from: number; metric: string }
  | { kind: "value"; word: string; from: number; metric: string; label: string }
  | { kind: "none" };

export function placeAt(text: string, cursor: number): Place {
  const before = text.slice(0, cursor);
  const brace = openBrace(before);
  if (brace >= 0) {
    const metric = /([a-zA-Z_:][\w:]*)\s*$/.exec(before.slice(0, brace))?.[1] ?? "";
    const inside = before.slice(brace + 1);
    const value = /([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)$/.exec(inside);
    if (value)
      return {
        kind: "value",
        label: value[1] ?? "",
        word: value[2] ?? "",
        from: cursor - (value[2] ?? "").length,
        metric,
      };
    if (insideString(inside)) return { kind: "none" };
    const word = /(?:^|[,\s])([a-zA-Z_]\w*)?$/.exec(inside);
    return word
      ? { kind: "label", word: word[1] ?? "", from: cursor - (word[1] ?? "").length, metric }
      : { kind: "none" };
  }
  if (insideString(before)) return { kind: "none" };
  const word = /[a-zA-Z_:][\w:]*$/.exec(before)?.[0] ?? "";
  const list = new RegExp(`\\b(?:${MODIFIERS.join("|")})\\s*\\(\\s*(?:\\w+\\s*,\\s*)*$`).test(
    before.slice(0, cursor - word.length),
  );
  if (list) return { kind: "label", word, from: cursor - word.length, metric: "" };
  if (/\[[^\]]*$/.test(before)) return { kind: "none" };
  return { kind: "name", word, from: cursor - word.length };
}

/** Where the brace opens that is still open at the end, or -1; braces within strings do not count. */
function openBrace(text: string): number {
  let open = -1;
  let quoted = "";
  for (let at = 0; at < text.length; at += 1) {
    const sign = text.charAt(at);
    if (quoted) {
      if (sign === "\\") at += 1;
      else if (sign === quoted) quoted = "";
    } else if (sign === '"' || sign === "'" || sign === "`") quoted = sign;
    else if (sign === "{") open = at;
    else if (sign === "}") open = -1;
  }
  return open;
}

function insideString(text: string): boolean {
  return /^(?:[^"\\]|"(?:[^"\\]|\\.)*")*"(?:[^"\\]|\\.)*$/.test(text);
}

/** Those that begin with the word first, then those that hold it. */
export function rank(candidates: readonly string[], word: string, most = 40): string[] {
  const wanted = word.toLowerCase();
  const begin = candidates.filter((one) => one.toLowerCase().startsWith(wanted));
  const hold = wanted
    ? candidates.filter((one) => !one.toLowerCase().startsWith(wanted) && one.toLowerCase().includes(wanted))
    : [];
  return [...begin, ...hold].slice(0, most);
}

export function describeMetric(
  metric: Readonly<Record<string, string>>,
  without: ReadonlySet<string> = new Set(),
): string {
  const labels = Object.entries(metric)
    .filter(([name]) => name !== "__name__" && name !== GPU && !without.has(name))
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  const gpu = metric[GPU];
  const name = without.has("__name__") ? "" : (metric["__name__"] ?? "");
  return [gpu, gpu && !labels.length ? name : `${name}{${labels.join(", ")}}`].filter(Boolean).join(" ");
}

/** Where the name of a GPU stands among labels; no label of Prometheus has this name. */
const GPU = "";

/** Labels that are the same on all of several series: said once, they need not be said in every line. */
export function commonLabels(metrics: readonly Readonly<Record<string, string>>[]): Set<string> {
  const [first, ...others] = metrics;
  if (!first || !others.length) return new Set();
  return new Set(Object.keys(first).filter((name) => others.every((metric) => metric[name] === first[name])));
}

/** A UUID says nothing to a person: node and GPU stand in its place where the fleet knows it. */
export function nameGpus(
  metric: Readonly<Record<string, string>>,
  names: ReadonlyMap<string, string>,
): Readonly<Record<string, string>> {
  const named = names.get(metric["uuid"] ?? "");
  if (named === undefined) return metric;
  const { uuid: _uuid, gpu: _gpu, instance: _instance, ...rest } = metric;
  return { ...rest, [GPU]: named };
}
