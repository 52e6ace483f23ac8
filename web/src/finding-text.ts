// A finding in the reader's language: the sentence, its next step, and the owner as a person writes it.
import { formatIndices } from "./format";
import { fill, spoken, tName } from "./i18n";
import type { Finding } from "./live";

export function ownerLabel(owner: Finding["owner"]): string {
  if (owner.kind === "job") return `job ${owner.name}${owner.user ? ` (${owner.user})` : ""}`;
  return [owner.namespace, owner.name].filter(Boolean).join("/");
}

function valuesOf(finding: Finding): Record<string, string | number> {
  const { reason } = finding.args;
  return {
    ...finding.args,
    gpus: formatIndices(finding.gpus),
    owner: ownerLabel(finding.owner),
    ...(typeof reason === "string" ? { reason: tName("why", reason) } : {}),
  };
}

/** What the server says in English where this page does not know the key: a newer server. */
export function whyText(finding: Finding): string {
  const texts: Readonly<Record<string, string>> = spoken.get().findings;
  const text = texts[finding.why_key];
  return text === undefined ? finding.why : fill(text, valuesOf(finding));
}

export function nextText(finding: Finding): string {
  const texts: Readonly<Record<string, string | undefined>> = spoken.get().steps;
  const text = texts[finding.next_key];
  return text === undefined ? finding.next : fill(text, valuesOf(finding));
}
