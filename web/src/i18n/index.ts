// The words of the page in the reader's language. English is always there; the others are loaded when asked for, so
// that nobody pays for four languages.
import type { FindingTextKey, ReportTextKey, StepTextKey } from "../api-types";
import { localNumber, setLocale } from "../format";
import { createStore, useStore } from "../store";
import { panelById } from "../panels";
import { en } from "./en";

export type Key = keyof typeof en;
export type Words = Record<Key, string>;
export type PanelWords = Record<string, { title: string; help: string }>;
export interface Language {
  words: Words;
  panels: PanelWords;
  /** Sentences of findings, by `why_key`; English has none here, because the server sends them. */
  findings: Readonly<Partial<Record<FindingTextKey, string>>>;
  /** Next steps, by `next_key`; of English as above. */
  steps: Readonly<Partial<Record<StepTextKey, string>>>;
  /** Sentences of reports, receipts and coverage, by their key; of English as above. */
  reports: Readonly<Partial<Record<ReportTextKey, string>>>;
}

export const LANGUAGES = { en: "English", ko: "한국어", ja: "日本語", zh: "中文" } as const;
export type LanguageCode = keyof typeof LANGUAGES;

const LOADERS: Record<Exclude<LanguageCode, "en">, () => Promise<{ language: Language }>> = {
  ko: () => import("./ko"),
  ja: () => import("./ja"),
  zh: () => import("./zh"),
};

interface Spoken extends Language {
  code: LanguageCode;
}

// The panels' own definition is their English text.
const ENGLISH: Spoken = { code: "en", words: en, panels: {}, findings: {}, steps: {}, reports: {} };
export const spoken = createStore<Spoken>(ENGLISH);

export function chooseLanguage(stored: string | null, preferred: readonly string[]): LanguageCode {
  for (const wanted of [stored ?? "", ...preferred]) {
    const code = wanted.toLowerCase().split("-")[0] ?? "";
    if (code in LANGUAGES) return code as LanguageCode;
  }
  return "en";
}

/** The browser's variant of the language, which knows how its region writes numbers: `en-IN` rather than `en`. */
export const localeFor = (code: LanguageCode, preferred: readonly string[]): string =>
  preferred.find((one) => one.toLowerCase().startsWith(`${code}-`)) ?? code;

export async function speak(code: LanguageCode): Promise<void> {
  const language: Spoken = code === "en" ? ENGLISH : { code, ...(await LOADERS[code]()).language };
  document.documentElement.lang = code;
  setLocale(localeFor(code, globalThis.navigator?.languages ?? []));
  spoken.set(language);
}

export function fill(text: string, values: Readonly<Record<string, string | number>>): string {
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}

/** A text that counts one thing has a form of its own where the language wants one: its key ends in `.one`. */
export function t(key: Key, values: Readonly<Record<string, string | number>> = {}): string {
  const words: Record<string, string> = spoken.get().words;
  const single = values["count"] === 1 ? words[`${key}.one`] : undefined;
  const written = Object.entries(values).map(([name, value]) => [
    name,
    typeof value === "number" ? localNumber(value, 1) : value,
  ]);
  return fill(single ?? words[key] ?? key, Object.fromEntries(written) as Record<string, string>);
}

/** A word for a name that comes from the machine, such as a throttle reason; the name itself where there is none. */
export function tName(prefix: string, name: string): string {
  const words: Record<string, string> = spoken.get().words;
  return words[`${prefix}.${name}`] ?? name;
}

export const panelTitle = (id: string): string => spoken.get().panels[id]?.title ?? panelById(id)?.title ?? id;
export const panelHelp = (id: string): string => spoken.get().panels[id]?.help ?? panelById(id)?.help ?? "";

/** Makes a component draw anew when the language changes. */
export const useLanguage = (): LanguageCode => useStore(spoken).code;
