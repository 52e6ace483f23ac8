// The glossary is kept: where an English text has a term, every other language has the term's word. All texts of the page are
// read: its own, those of panels, the sentences and next steps of findings, and the sentences of reports.
import { describe, expect, it } from "vitest";
import glossary from "../src/i18n/glossary.md?raw";
import { FINDING_TEXTS, REPORT_TEXTS, STEP_TEXTS } from "../src/api-types";
import type { Language } from "../src/i18n";
import { en } from "../src/i18n/en";
import { language as ja } from "../src/i18n/ja";
import { language as ko } from "../src/i18n/ko";
import { language as zh } from "../src/i18n/zh";
import { PANELS } from "../src/panels";

interface Row {
  term: string;
  /** Of each language the words that may stand for the term. */
  words: string[][];
}
interface Text {
  key: string;
  english: string;
  others: string[];
}

const LANGUAGES: readonly Language[] = [ko, ja, zh];
const ROWS: readonly Row[] = glossary
  .split("\n")
  .filter((line) => line.startsWith("| ") && !/^\| (English|-)/.test(line))
  .map((line) => line.split("|").slice(1, -1))
  .map(([term = "", ...words]) => ({
    term: term.trim(),
    words: words.map((cell) => cell.split("/").map((one) => one.trim())),
  }));

const textsOf = (kind: string, english: Record<string, string>, of: (one: Language) => object): Text[] =>
  Object.entries(english).map(([key, text]) => ({
    key: `${kind} ${key}`,
    english: text,
    others: LANGUAGES.map((one) => (of(one) as Record<string, string>)[key] ?? ""),
  }));
const panelTexts = (part: "title" | "help"): Text[] =>
  textsOf(part, Object.fromEntries(PANELS.map((panel) => [panel.id, panel[part]])), (language) =>
    Object.fromEntries(Object.entries(language.panels).map(([id, words]) => [id, words[part]])),
  );
const TEXTS: readonly Text[] = [
  ...textsOf("page", en, (one) => one.words),
  ...textsOf("finding", FINDING_TEXTS, (one) => one.findings),
  ...textsOf("step", STEP_TEXTS, (one) => one.steps),
  ...textsOf("report", REPORT_TEXTS, (one) => one.reports),
  ...panelTexts("title"),
  ...panelTexts("help"),
];

/** Names of options, files, commands and variables are no words. */
const NAMES = /\{\w+\}|--[\w-]+( \w+)?|[\w./-]+\.(md|sh)|[A-Z]+_[A-Z_]+|(scontrol|squeue|nvidia-smi|systemctl)[^,;.]*/g;
const BY_LENGTH = [...ROWS].sort((left, right) => right.term.length - left.term.length);
const patternOf = (term: string): RegExp => new RegExp(`(?<![\\w-])${term}(?:s|es)?(?![\\w-])`, "gi");

/** Terms of a text, the longest first: "held back" is not "held". */
function termsOf(english: string): Row[] {
  let left = english.replace(NAMES, " ");
  return BY_LENGTH.filter((row) => {
    const without = left.replace(patternOf(row.term), " ");
    const found = without !== left;
    left = without;
    return found;
  });
}

const holds = (text: string, words: readonly string[]): boolean =>
  words.some((word) => text.toLowerCase().includes(word.toLowerCase()));

describe("every term of an English text stands in the other languages as the glossary says", () => {
  it.each(TEXTS.map((text): [string, Text] => [text.key, text]))("%s", (_, { english, others }) => {
    const wrong = termsOf(english).flatMap(({ term, words }) =>
      others.flatMap((text, place) => (holds(text, words[place] ?? []) ? [] : [`${term}: ${text}`])),
    );
    expect(wrong).toEqual([]);
  });
});

it("is the glossary of these languages, each term once", () => {
  expect(ROWS.length).toBeGreaterThan(50);
  expect(ROWS.filter((row) => row.words.length !== LANGUAGES.length || row.words.flat().includes(""))).toEqual([]);
  expect(new Set(ROWS.map((row) => row.term)).size).toBe(ROWS.length);
});

it("has no word that no text uses", () => {
  const unused = ROWS.flatMap(({ term, words }) => {
    const used = TEXTS.filter((text) => termsOf(text.english).some((row) => row.term === term));
    return words.flatMap((choices, place) =>
      choices
        .filter((word) => !used.some((text) => holds(text.others[place] ?? "", [word])))
        .map((word) => `${term}: ${word}`),
    );
  });
  expect(unused).toEqual([]);
});

it("finds a text that does not keep it", () => {
  const [row] = termsOf("The audit log of this node").filter(({ term }) => term === "audit log");
  expect(row && holds("이 노드의 감사 로그", row.words[0] ?? [])).toBe(true);
  expect(row && holds("이 노드의 기록", row.words[0] ?? [])).toBe(false);
  expect(termsOf("Clocks held back").map(({ term }) => term)).not.toContain("held");
});
