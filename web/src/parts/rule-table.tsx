// The rules in force: what each watches, when it was last evaluated, and what failed.
import type { JSX } from "preact";
import { getJson } from "../api";
import { toWords } from "../fleet";
import { formatDuration, formatMoment } from "../format";
import { t, tName, useLanguage } from "../i18n";
import { serverNow } from "../live";
import { linkTo, route } from "../router";
import { useStore } from "../store";
import { AskedState, useAsked } from "./asked";
import { SearchBox } from "./controls";
import { DataTable, nameColumn, type Column } from "./data-table";
import { Name } from "./marks";

interface Rule {
  name: string;
  query: string;
  type: "alerting" | "recording";
  state?: string;
  duration?: number;
  labels?: Record<string, string>;
  health: string;
  lastError?: string;
  lastEvaluation: string;
  evaluationTime: number;
}
interface RuleRow extends Rule {
  group: string;
  file: string;
}

async function fetchRules(signal: AbortSignal): Promise<RuleRow[]> {
  const { data } = await getJson<{ data: { groups: { name: string; file: string; rules: Rule[] }[] } }>(
    "api/v1/rules?exclude_alerts=true",
    signal,
  );
  return data.groups.flatMap((group) => group.rules.map((rule) => ({ ...rule, group: group.name, file: group.file })));
}

export function RuleTable(): JSX.Element {
  const language = useLanguage();
  const { query } = useStore(route);
  const asked = useAsked(fetchRules, "", 15_000);
  const words = toWords(query["q"] ?? "");
  const rows = (asked.data ?? []).filter((rule) =>
    words.every((word) => `${rule.name} ${rule.group} ${rule.query}`.toLowerCase().includes(word)),
  );
  const now = serverNow();
  const columns: Column<RuleRow>[] = [
    nameColumn("rule", t("rules.rule"), (one) => one.name),
    nameColumn("group", t("rules.group"), (one) => one.group),
    {
      id: "severity",
      title: t("findings.severity"),
      cell: (one) => tName("severity", one.labels?.["severity"] ?? "–"),
      value: (one) => one.labels?.["severity"],
    },
    {
      id: "state",
      title: t("column.state"),
      cell: (one) =>
        one.health === "err" ? (
          <b class="crit">
            ✕ <Name text={one.lastError ?? ""} />
          </b>
        ) : one.state === undefined ? (
          t("rules.records")
        ) : (
          tName("rulestate", one.state)
        ),
      value: (one) => one.state ?? one.health,
    },
    {
      id: "for",
      title: t("rules.for"),
      number: true,
      cell: (one) => (one.duration ? formatDuration(one.duration) : "–"),
      value: (one) => one.duration,
    },
    {
      id: "last",
      title: t("rules.last"),
      // Prometheus writes the year 1 for a rule whose turn has not come.
      cell: (one) =>
        one.lastEvaluation.startsWith("0001-")
          ? t("rules.not_yet")
          : formatMoment(Date.parse(one.lastEvaluation) / 1000, now, language),
      value: (one) => one.lastEvaluation,
    },
    {
      id: "query",
      title: t("rules.query"),
      wide: true,
      cell: (one) => (
        <a href={linkTo("explore", "", { q: one.query })}>
          <code class="clip">{one.query}</code>
        </a>
      ),
      value: (one) => one.query,
    },
  ];
  return (
    <section>
      <div class="controls">
        <SearchBox label={t("rules.search")} />
      </div>
      <AskedState asked={asked} what={t("settings.rules")} />
      {asked.data && (
        <DataTable
          name={t("settings.rules")}
          rows={rows}
          columns={columns}
          keyOf={(one) => `${one.file}/${one.group}/${one.name}/${one.query}`}
          empty={t("alerts.no_rules")}
        />
      )}
    </section>
  );
}
