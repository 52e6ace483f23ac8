// Two usage reports side by side. No DOM.
import type { ReportAnswer, ReportBucketJson, ReportRowJson } from "./api-types";

export type Report = ReportAnswer;
export type ReportBucket = ReportBucketJson;

export interface ComparedRow {
  name: string;
  namespace: string;
  now: ReportRowJson | undefined;
  before: ReportRowJson | undefined;
}

/** Rows of both periods by name: who left and who came are rows, too. */
export function joinPeriods(now: Report | undefined, before: Report | undefined): ComparedRow[] {
  const keyOf = (row: ReportRowJson): string => `${row.namespace}/${row.name}`;
  const rows = new Map<string, ComparedRow>();
  for (const row of now?.rows ?? [])
    rows.set(keyOf(row), { name: row.name, namespace: row.namespace, now: row, before: undefined });
  for (const row of before?.rows ?? []) {
    const known = rows.get(keyOf(row));
    if (known) known.before = row;
    else rows.set(keyOf(row), { name: row.name, namespace: row.namespace, now: undefined, before: row });
  }
  return [...rows.values()];
}

export const PARTS = ["owners", "unattributed", "free", "lost", "stranded"] as const;
