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

/** Whether somebody holds what it is about: if nobody is known, that is said. */
export function isAboutOwner(finding: Finding): boolean {
  return finding.owner.kind !== "none" || finding.next_key === "unknown_owner" || finding.kind === "gpu_lost";
}

/** As nvidia-smi's -i takes it; of a MIG instance its GPU. */
function gpuList(gpus: readonly string[]): string {
  const whole = new Set(gpus.map((index) => index.split("_")[0] ?? index));
  return [...whole].sort((a, b) => Number(a) - Number(b)).join(",");
}

/** GPU-hours lost: counted by the server until `cost_at`, and what its GPUs have lost since then. */
export function costOf(finding: Finding, now: number): number | undefined {
  const { cost_gpu_hours: counted, wasted_gpus: gpus, cost_at: at } = finding;
  // A server of another version may have none of them.
  if (typeof counted !== "number") return undefined;
  return typeof gpus !== "number" || typeof at !== "number" ? counted : counted + (gpus * Math.max(now - at, 0)) / 3600;
}

/** The server counts each hour of a GPU once. */
export function sumCosts(findings: readonly Finding[], now: number): number | undefined {
  const costs = findings.map((one) => costOf(one, now)).filter((cost) => cost !== undefined);
  return costs.length ? costs.reduce((sum, cost) => sum + cost, 0) : undefined;
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
