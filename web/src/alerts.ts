// Alerts as the view shows them: those of the rules and those that the notifier holds, joined by their labels. No DOM,
// no judgement: states are the server's. In: `api/v1/alerts`, `api/v2/alerts`, `api/v2/silences`. Out: rows.
import { naturalOrder } from "./format";

export type Labels = Readonly<Record<string, string>>;
export interface RuleAlert {
  labels: Labels;
  annotations: Labels;
  state: "firing" | "pending" | "inactive";
  activeAt: string;
  value: string;
}
export interface NotifiedAlert {
  labels: Labels;
  annotations: Labels;
  startsAt: string;
  receivers: { name: string }[];
  generatorURL?: string;
  status: { state: string; silencedBy: string[]; inhibitedBy: string[] };
}
export interface Matcher {
  name: string;
  value: string;
  isRegex: boolean;
  isEqual?: boolean;
}
export interface Silence {
  id: string;
  matchers: Matcher[];
  startsAt: string;
  endsAt: string;
  createdBy: string;
  comment: string;
  status: { state: "active" | "pending" | "expired" };
}

export const ALERT_STATES = ["firing", "pending", "silenced", "inhibited"] as const;
export type AlertState = (typeof ALERT_STATES)[number];
export const SEVERITIES = ["critical", "page", "warning", "info"] as const;

export interface AlertRow {
  key: string;
  name: string;
  severity: string;
  state: AlertState;
  labels: Labels;
  annotations: Labels;
  since: number | undefined;
  silencedBy: string[];
  receivers: string[];
}

export const labelKey = (labels: Labels): string =>
  JSON.stringify(Object.entries(labels).sort(([left], [right]) => (left < right ? -1 : 1)));

const seconds = (text: string): number | undefined => {
  const at = Date.parse(text) / 1000;
  return Number.isFinite(at) && at > 0 ? at : undefined;
};

/** An alert that a rule of another server sent is only known to the notifier; a pending one only to the rules. */
export function joinAlerts(rules: readonly RuleAlert[], notified: readonly NotifiedAlert[]): AlertRow[] {
  const rows = new Map<string, AlertRow>();
  for (const alert of rules) {
    if (alert.state === "inactive") continue;
    rows.set(labelKey(alert.labels), toRow(alert, alert.state, seconds(alert.activeAt)));
  }
  for (const alert of notified) {
    const key = labelKey(alert.labels);
    const known = rows.get(key);
    const { silencedBy, inhibitedBy } = alert.status;
    const state = silencedBy.length ? "silenced" : inhibitedBy.length ? "inhibited" : "firing";
    const receivers = alert.receivers.map((one) => one.name);
    rows.set(key, {
      ...(known ?? toRow(alert, state, seconds(alert.startsAt))),
      state: known?.state === "pending" ? "pending" : state,
      silencedBy,
      receivers,
    });
  }
  return [...rows.values()].sort(byUrgency);
}

function toRow(alert: { labels: Labels; annotations: Labels }, state: AlertState, since: number | undefined): AlertRow {
  const { labels, annotations } = alert;
  const severity = labels["severity"] ?? "";
  const name = labels["alertname"] ?? "";
  return { key: labelKey(labels), name, severity, state, labels, annotations, since, silencedBy: [], receivers: [] };
}

export function severityRank(severity: string): number {
  const place = SEVERITIES.indexOf(severity as (typeof SEVERITIES)[number]);
  return place < 0 ? 1.5 : place;
}

const byUrgency = (left: AlertRow, right: AlertRow): number =>
  severityRank(left.severity) - severityRank(right.severity) ||
  (left.since ?? Infinity) - (right.since ?? Infinity) ||
  naturalOrder(left.key, right.key);

/** One group for each rule and severity, in the order of its first alert. */
export interface AlertGroup {
  name: string;
  severity: string;
  rows: AlertRow[];
}

export function groupAlerts(rows: readonly AlertRow[]): AlertGroup[] {
  const groups = new Map<string, AlertGroup>();
  for (const row of rows) {
    const key = `${row.name}\n${row.severity}`;
    const group = groups.get(key) ?? { name: row.name, severity: row.severity, rows: [] };
    group.rows.push(row);
    groups.set(key, group);
  }
  return [...groups.values()];
}

/** The node and GPU that the labels name, as a person says it. An `instance` may be an address: `name` is its node's. */
export function subjectOf(labels: Labels, name?: string): string {
  const { instance = "", gpu, node, pod, namespace, slurm_job: job, user } = labels as Record<string, string>;
  const where = [name ?? node ?? instance, gpu === undefined ? "" : `GPU ${gpu}`].filter(Boolean).join(" ");
  const who = pod ? [namespace, pod].filter(Boolean).join("/") : job ? `job ${job}` : (user ?? "");
  return [where, who].filter(Boolean).join(" · ");
}

/** Of the rules that Slurm's numbers are watched by: the node is the one that reads them, not the one that is wrong. */
export const isOfSlurm = (name: string): boolean => /^(Slurm|GpusIdleWhileJobsWait)/.test(name);

/** What the rule means, once for all its alerts, and of each what its own sentence adds: the number, the XID. */
export function splitMeaning(rows: readonly AlertRow[]): { meaning: string; details: string[] } {
  const sentences = rows.map((row) =>
    (row.annotations["description"] ?? row.annotations["summary"] ?? "").replace(/^: /, "").split(/(?<=[.:])\s+/),
  );
  const [first = []] = sentences;
  let same = 0;
  while (same < first.length && sentences.every((one) => one[same] === first[same])) same += 1;
  return { meaning: first.slice(0, same).join(" "), details: sentences.map((one) => one.slice(same).join(" ")) };
}

export const matcherText = (matcher: Matcher): string => {
  const equal = matcher.isEqual ?? true;
  const sign = matcher.isRegex ? (equal ? "=~" : "!~") : equal ? "=" : "!=";
  return `${matcher.name}${sign}${JSON.stringify(matcher.value)}`;
};

/** Whether a silence with these matchers would hold the alert; RE2 and the browser agree on what people write here. */
export function isMatched(labels: Labels, matchers: readonly Matcher[]): boolean {
  return matchers.every((matcher) => {
    const value = labels[matcher.name] ?? "";
    let holds: boolean;
    if (matcher.isRegex) {
      try {
        holds = new RegExp(`^(?:${matcher.value})$`, "s").test(value);
      } catch {
        return false;
      }
    } else {
      holds = value === matcher.value;
    }
    return (matcher.isEqual ?? true) ? holds : !holds;
  });
}

const IDENTIFYING = ["alertname", "instance", "uuid", "gpu", "xid", "source", "namespace", "pod", "slurm_job", "user"];

/** What a silence of one alert names at first: the rule and its subject, not how severe it is or who scraped it. */
export const proposedMatchers = (labels: Labels): Matcher[] =>
  Object.entries(labels)
    .filter(([name]) => IDENTIFYING.includes(name) && name !== "gpu")
    .map(([name, value]) => ({ name, value, isRegex: false, isEqual: true }));
