// Where in a PromQL text the mistake is. Prometheus says it (`1:5: parse error: …`); an engine that only says what is wrong
// gets the nearest sign or word that can be to blame. In: text and the engine's sentence. Out: a span, or nothing.
import { AGGREGATIONS, FUNCTIONS } from "./promql";

export interface ErrorPlace {
  from: number;
  to: number;
}

export function findError(text: string, problem: string): ErrorPlace | undefined {
  return statedPlace(text, problem) ?? namedPlace(text, problem) ?? unbalancedPlace(text) ?? strayPlace(text);
}

/** `1:5:` is line and column, both from 1. */
function statedPlace(text: string, problem: string): ErrorPlace | undefined {
  const match = /\b(\d+):(\d+): parse error/.exec(problem);
  if (!match) return undefined;
  const lines = text.split("\n");
  const before = lines.slice(0, Number(match[1]) - 1).reduce((sum, line) => sum + line.length + 1, 0);
  const from = Math.min(before + Number(match[2]) - 1, text.length);
  return { from, to: Math.min(from + 1, text.length) };
}

/** The function or label that the sentence has in quotes. */
function namedPlace(text: string, problem: string): ErrorPlace | undefined {
  for (const [, name = ""] of problem.matchAll(/['"`]([A-Za-z_:][\w:]*)['"`]/g)) {
    if (name === "query") continue;
    const from = text.search(new RegExp(`\\b${name}\\b`));
    if (from >= 0) return { from, to: from + name.length };
  }
  return undefined;
}

const PAIRS: Readonly<Record<string, string>> = { ")": "(", "]": "[", "}": "{" };

/** A bracket without its other half, or a string without its end. */
function unbalancedPlace(text: string): ErrorPlace | undefined {
  const open: { sign: string; at: number }[] = [];
  for (let at = 0; at < text.length; at += 1) {
    const sign = text.charAt(at);
    if (sign === '"' || sign === "'" || sign === "`") {
      let end = at + 1;
      while (end < text.length && text.charAt(end) !== sign) end += text.charAt(end) === "\\" && sign !== "`" ? 2 : 1;
      if (end >= text.length) return { from: at, to: text.length };
      at = end;
    } else if ("([{".includes(sign)) open.push({ sign, at });
    else if (sign in PAIRS && open.pop()?.sign !== PAIRS[sign]) return { from: at, to: at + 1 };
  }
  const last = open.pop();
  return last && { from: last.at, to: last.at + 1 };
}

/** A name called that is no function, two names beside each other, or a sign at the end that wants more. */
function strayPlace(text: string): ErrorPlace | undefined {
  for (const match of text.matchAll(/\b([A-Za-z_]\w*)\s*\(/g)) {
    const name = match[1] ?? "";
    const known = [
      ...FUNCTIONS,
      ...AGGREGATIONS,
      "by",
      "without",
      "on",
      "ignoring",
      "group_left",
      "group_right",
      "and",
      "or",
      "unless",
      "bool",
    ];
    if (!known.includes(name)) return { from: match.index, to: match.index + name.length };
  }
  const words = "and|or|unless|by|without|on|ignoring|group_left|group_right|offset|bool|atan2|inf|nan";
  const pair = new RegExp(
    `(?<![\\w"'\`}])(?!(?:${words})\\b)[A-Za-z_:][\\w:]*\\s+(?!(?:${words})\\b)([A-Za-z_:][\\w:]*)`,
    "i",
  ).exec(text);
  if (pair?.[1]) return { from: pair.index + pair[0].length - pair[1].length, to: pair.index + pair[0].length };
  const end = /[-+*/%^=<>!~,]\s*$/.exec(text);
  return end ? { from: end.index, to: end.index + 1 } : undefined;
}
