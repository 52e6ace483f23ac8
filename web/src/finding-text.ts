// A finding in the reader's language: the sentence, its next step, and the owner as a person writes it.
import { formatIndices } from "./format";
import { fill, spoken, t, tName } from "./i18n";
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
    gpu_list: gpuList(finding.gpus),
    owner: ownerLabel(finding.owner) || t("findings.unknown_owner"),
    ...(typeof reason === "string" ? { reason: tName("why", reason) } : {}),
  };
}

/** As nvidia-smi's -i takes it; of a MIG instance its GPU. */
function gpuList(gpus: readonly string[]): string {
  const whole = new Set(gpus.map((index) => index.split("_")[0] ?? index));
  return [...whole].sort((a, b) => Number(a) - Number(b)).join(",");
}

/** GPU-hours lost: measured by the server, or of a finding of now, what its GPUs have lost since it began. */
export function costOf(finding: Finding, now: number): number | undefined {
  const { cost_gpu_hours: measured, wasted_gpus: gpus, since } = finding;
  // A server of another version may have neither.
  if (typeof measured === "number") return measured;
  return typeof gpus !== "number" || since === null ? undefined : (gpus * Math.max(now - since, 0)) / 3600;
}

/** A GPU that several findings are about is counted once. */
export function sumCosts(findings: readonly Finding[], now: number): number | undefined {
  const hours = new Map<string, number>();
  for (const one of findings) {
    const cost = costOf(one, now);
    if (cost === undefined) continue;
    // Of a range the server has counted each hour once; of now the GPUs of findings may be the same.
    const places = one.cost_gpu_hours === null ? one.uuids : [`${one.id}/${one.since ?? ""}`];
    for (const place of places) hours.set(place, Math.max(hours.get(place) ?? 0, cost / places.length));
  }
  return hours.size ? [...hours.values()].reduce((sum, one) => sum + one, 0) : undefined;
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
