// A sentence of a report or a receipt in the reader's language. In: the server's English sentence, and its key with
// arguments. A key that this page does not know, of a newer server, leaves the English.
import type { SentenceJson } from "./api-types";
import { formatHours, formatMoment, localNumber, toSentence } from "./format";
import { fill, spoken, tName } from "./i18n";
import { serverNow } from "./live";

function valueText(name: string, value: string | number): string {
  if (name === "reason") return tName("why", String(value));
  if (typeof value === "string") return value;
  if (name === "at") return formatMoment(value, serverNow(), spoken.get().code);
  return name.endsWith("hours") ? formatHours(value) : localNumber(value, 1);
}

export function sentenceText(english: string, sentence: SentenceJson | undefined): string {
  const texts: Readonly<Record<string, string | undefined>> = spoken.get().reports;
  const text = sentence && texts[sentence.key];
  // In English a time is written as the reader's clock shows it, not as a log has it.
  if (text === undefined) return toSentence(english.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, localMoment));
  const values = Object.entries(sentence?.args ?? {}).map(([name, value]) => [name, valueText(name, value)]);
  return fill(text, Object.fromEntries(values) as Record<string, string>).replace(/([^.。!?])$/, `$1${fullStop()}`);
}

const localMoment = (text: string): string => formatMoment(Date.parse(text) / 1000, serverNow(), spoken.get().code);
const fullStop = (): string => (/^(ja|zh)/.test(spoken.get().code) ? "。" : ".");
