// Settings: where numbers come from and whether they come, how to add a node, rules, channels, users and tokens, history
// and disk, and what was changed by whom.
import type { JSX } from "preact";
import { getJson } from "../api";
import type { AuditAnswer, AuditEntry, ServerAnswer } from "../api-types";
import { formatDuration, formatLength, formatMoment, formatValue } from "../format";
import { t, useLanguage } from "../i18n";
import { live, serverNow } from "../live";
import { AddNode } from "../parts/add-node";
import { AskedState, useAsked } from "../parts/asked";
import { ChannelSettings } from "../parts/channel-settings";
import { Tabs } from "../parts/controls";
import { DataTable, nameColumn, type Column } from "../parts/data-table";
import { Fact, Facts } from "../parts/facts";
import { Name } from "../parts/marks";
import { RoleNeeded } from "../parts/problem";
import { RuleTable } from "../parts/rule-table";
import { UserSettings } from "../parts/user-settings";
import { route } from "../router";
import { mayDo, useSession } from "../session";
import { useStore } from "../store";

const TABS = ["targets", "add", "rules", "channels", "users", "history", "audit"] as const;
const EVERY_MS = 10_000;

export function Settings(): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const { role, user } = useSession();
  const tab = TABS.find((one) => one === query["tab"]) ?? "targets";
  return (
    <div class="data">
      <div class="head">
        <h1>{t("nav.settings")}</h1>
        <span class="soft">{user ? t("settings.as", { user, role: t(`role.${role}`) }) : t("settings.open")}</span>
      </div>
      <div class="controls">
        <Tabs choices={TABS} chosen={tab} title={(one) => t(`settings.${one}`)} />
      </div>
      {tab === "targets" && <Targets />}
      {tab === "add" && <AddNode />}
      {tab === "rules" && <RuleTable />}
      {tab === "channels" && <ChannelSettings />}
      {tab === "users" && <UserSettings />}
      {tab === "history" && <History />}
      {tab === "audit" && (mayDo(role, "admin") ? <Audit /> : <RoleNeeded role="admin" />)}
    </div>
  );
}

interface Target {
  labels: Record<string, string>;
  scrapePool: string;
  scrapeUrl: string;
  lastError: string;
  lastScrape: string;
  lastScrapeDuration: number;
  health: string;
  scrapeInterval: string;
}

const fetchTargets = async (signal: AbortSignal): Promise<Target[]> =>
  (await getJson<{ data: { activeTargets: Target[] } }>("api/v1/targets?state=active", signal)).data.activeTargets;

function Targets(): JSX.Element {
  const language = useLanguage();
  const asked = useAsked(fetchTargets, "", EVERY_MS);
  const { picture } = useStore(live);
  const versions = new Map(picture?.nodes.map((one) => [one.instance, one.version]));
  const now = serverNow();
  // The server's own metrics may have the instance of the agent beside it.
  const versionOf = (one: Target): string | undefined =>
    one.labels["job"] === "gpuscope-server" ? undefined : versions.get(one.labels["instance"] ?? "");
  const columns: Column<Target>[] = [
    nameColumn("instance", t("settings.target"), (one) => one.labels["instance"]),
    {
      id: "job",
      title: t("settings.job"),
      cell: (one) => <Name text={one.labels["job"] ?? one.scrapePool} />,
      value: (one) => one.labels["job"] ?? one.scrapePool,
    },
    {
      id: "health",
      title: t("column.state"),
      cell: (one) =>
        one.health === "up" ? (
          t("settings.up")
        ) : (
          <b class="crit">✕ {one.health === "down" ? t("settings.down") : one.health}</b>
        ),
      value: (one) => one.health,
    },
    {
      id: "last",
      title: t("settings.last"),
      cell: (one) => formatMoment(Date.parse(one.lastScrape) / 1000, now, language),
      value: (one) => one.lastScrape,
    },
    {
      id: "every",
      title: t("settings.every"),
      // A node that sends its samples itself has an interval that only its agent knows.
      cell: (one) => (one.scrapeInterval ? formatLength(one.scrapeInterval) : t("settings.pushed")),
      value: (one) => one.scrapeInterval,
    },
    {
      id: "version",
      title: t("settings.version"),
      cell: (one) => versionOf(one) ?? "–",
      value: (one) => versionOf(one),
    },
    {
      id: "took",
      title: t("settings.took"),
      number: true,
      cell: (one) => (one.scrapeUrl ? `${Math.round(one.lastScrapeDuration * 1000)} ms` : "–"),
      value: (one) => one.lastScrapeDuration,
    },
    nameColumn("error", t("channels.error"), (one) => one.lastError, { wide: true }),
  ];
  return (
    <section>
      <AskedState asked={asked} what={t("settings.targets")} />
      {asked.data && (
        <DataTable
          name={t("settings.targets")}
          rows={asked.data}
          columns={columns}
          keyOf={(one) => `${one.scrapePool}/${one.labels["instance"]}/${one.scrapeUrl}`}
          sort="health"
          empty={t("settings.no_targets")}
          rowClass={(one) => (one.health === "up" ? "" : "severe")}
        />
      )}
    </section>
  );
}

function History(): JSX.Element {
  const language = useLanguage();
  const asked = useAsked((signal) => getJson<ServerAnswer>("api/server", signal), "", EVERY_MS);
  const { data } = asked;
  const now = serverNow();
  return (
    <section>
      <AskedState asked={asked} what={t("settings.history")} />
      {data && (
        <>
          <Facts>
            <Fact name={t("settings.version")} value={data.version} />
            <Fact name={t("settings.started")} value={formatMoment(data.started_at, now, language)} />
            {data.engine !== undefined && <Fact name={t("settings.engine")} value={data.engine} />}
            {data.retention_seconds !== undefined && (
              <Fact
                name={t("settings.retention")}
                value={formatDuration(data.retention_seconds)}
                of={data.retention_bytes === undefined ? "" : formatValue(data.retention_bytes, "bytes")}
              />
            )}
            {data.oldest_at !== undefined && (
              <Fact name={t("settings.reaches")} value={formatDuration(now - data.oldest_at)} />
            )}
            {data.disk_bytes !== undefined && (
              <Fact
                name={t("settings.disk")}
                value={formatValue(data.disk_bytes, "bytes")}
                of={
                  data.disk_free_bytes === undefined
                    ? ""
                    : t("settings.free", { bytes: formatValue(data.disk_free_bytes, "bytes") })
                }
              />
            )}
            {data.counted_series !== undefined && (
              <Fact
                name={t("settings.series")}
                value={formatValue(data.counted_series, "count")}
                of={formatValue(data.max_series, "count")}
                level={data.max_series ? data.counted_series / data.max_series : undefined}
              />
            )}
            {data.data_folder !== undefined && <Fact name={t("settings.folder")} value={data.data_folder} />}
          </Facts>
          {forecast(data, now) && <p>{forecast(data, now)}</p>}
          <p class="soft">{t(data.engine === undefined ? "settings.history_help" : "settings.engine_help")}</p>
        </>
      )}
    </section>
  );
}

/** How far back the disk will reach at the pace of now: the question everybody asks of a retention. */
function forecast(data: ServerAnswer, now: number): string {
  const { disk_bytes: used, oldest_at: oldest, retention_seconds: retention, disk_free_bytes: free } = data;
  if (!used || oldest === undefined || retention === undefined || now - oldest < 3600) return "";
  const needed = (used * retention) / (now - oldest);
  const enough = free === undefined || needed - used <= free;
  return t(enough ? "settings.will_need" : "settings.will_not_fit", {
    bytes: formatValue(needed, "bytes"),
    time: formatDuration(retention),
  });
}

function Audit(): JSX.Element {
  const language = useLanguage();
  const asked = useAsked(async (signal) => (await getJson<AuditAnswer>("api/audit", signal)).entries, "", EVERY_MS);
  const now = serverNow();
  const columns: Column<AuditEntry>[] = [
    {
      id: "time",
      title: t("settings.when"),
      cell: (one) => formatMoment(Date.parse(one.time) / 1000, now, language),
      value: (one) => one.time,
    },
    nameColumn("user", t("column.user"), (one) => one.user),
    {
      id: "action",
      title: t("settings.action"),
      wide: true,
      cell: (one) => <code>{one.action}</code>,
      value: (one) => one.action,
    },
    nameColumn("detail", t("settings.detail"), (one) => one.detail, { wide: true }),
    {
      id: "status",
      title: t("settings.status"),
      number: true,
      cell: (one) => <span class={one.status >= 400 ? "warn" : ""}>{one.status}</span>,
      value: (one) => one.status,
    },
    nameColumn("address", t("settings.address"), (one) => one.address),
  ];
  return (
    <section>
      <AskedState asked={asked} what={t("settings.audit")} />
      {asked.data && (
        <DataTable
          name={t("settings.audit")}
          rows={asked.data}
          columns={columns}
          keyOf={(one) => `${one.time}${one.action}${one.detail}`}
          empty={t("settings.no_audit")}
        />
      )}
    </section>
  );
}
