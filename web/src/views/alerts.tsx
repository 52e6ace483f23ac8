// Alerts: what fires, what is about to, what is silenced, what fired before, and who was told.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import {
  groupAlerts,
  isOfSlurm,
  joinAlerts,
  matcherText,
  proposedMatchers,
  splitMeaning,
  subjectOf,
  type AlertGroup,
  type AlertRow,
  type AlertState,
  type NotifiedAlert,
  type RuleAlert,
  type Silence,
} from "../alerts";
import { errorText, deleteJson, getJson, postJson } from "../api";
import { toWords } from "../fleet";
import { formatDuration, formatHours, formatMoment, localNumber } from "../format";
import { t, tName, useLanguage } from "../i18n";
import { serverNow, type LivePicture } from "../live";
import { AlertHistory } from "../parts/alert-history";
import { AskedState, useAsked } from "../parts/asked";
import { SearchBox, Tabs } from "../parts/controls";
import { DataTable, nameColumn, type Column } from "../parts/data-table";
import { Name } from "../parts/marks";
import { Problem, RoleNeeded } from "../parts/problem";
import { SilenceDialog } from "../parts/silence-dialog";
import { SentMessages } from "../parts/sent-messages";
import { linkTo, route } from "../router";
import { mayDo, useSession } from "../session";
import { useStore } from "../store";

const EVERY_MS = 5000;
const TABS = ["firing", "pending", "silenced", "history", "sent"] as const;
type Tab = (typeof TABS)[number];
/** The role that the server asks for to make or end a silence. */
const SILENCING_ROLE = "editor";

interface AlertsData {
  rows: AlertRow[];
  silences: Silence[];
  rules: number;
}

async function fetchAlerts(signal: AbortSignal): Promise<AlertsData> {
  const [rules, notified, silences, groups] = await Promise.all([
    getJson<{ data: { alerts: RuleAlert[] } }>("api/v1/alerts", signal),
    getJson<NotifiedAlert[]>("api/v2/alerts", signal).catch(() => []),
    getJson<Silence[]>("api/v2/silences", signal).catch(() => []),
    getJson<{ data: { groups: { rules: unknown[] }[] } }>("api/v1/rules?type=alert&exclude_alerts=true", signal).catch(
      () => undefined,
    ),
  ]);
  const count = groups?.data.groups.reduce((sum, group) => sum + group.rules.length, 0) ?? 1;
  return { rows: joinAlerts(rules.data.alerts, notified), silences, rules: count };
}

export function Alerts({ picture }: { picture: LivePicture }): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const asked = useAsked(fetchAlerts, "", EVERY_MS);
  const tab = TABS.find((one) => one === query["tab"]) ?? "firing";
  const rows = asked.data?.rows ?? [];
  const counts = useMemo(() => countStates(rows), [rows]);
  return (
    <div class="data">
      <div class="head">
        <h1>{t("nav.alerts")}</h1>
        <span class="soft">{t("alerts.rules", { count: asked.data?.rules ?? 0 })}</span>
      </div>
      <div class="controls">
        <Tabs
          choices={TABS}
          chosen={tab}
          title={(one) => (
            <>
              {t(`alerts.tab.${one}`)}{" "}
              {one in counts && <span class="soft">{localNumber(counts[one as keyof typeof counts], 0)}</span>}
            </>
          )}
        />
        <SearchBox label={t("alerts.search")} />
      </div>
      <AskedState asked={asked} what={t("nav.alerts")} />
      {asked.data && (
        <Shown tab={tab} data={asked.data} search={query["q"] ?? ""} again={asked.again} picture={picture} />
      )}
    </div>
  );
}

function countStates(rows: readonly AlertRow[]): Record<"firing" | "pending" | "silenced", number> {
  const count = (...states: AlertState[]): number => rows.filter((row) => states.includes(row.state)).length;
  return { firing: count("firing"), pending: count("pending"), silenced: count("silenced", "inhibited") };
}

interface ShownProps {
  tab: Tab;
  data: AlertsData;
  search: string;
  again(): void;
  picture: LivePicture;
}

function Shown({ tab, data, search, again, picture }: ShownProps): JSX.Element {
  if (tab === "history") return <AlertHistory search={search} picture={picture} />;
  if (tab === "sent") return <SentMessages search={search} />;
  const states: readonly AlertState[] = tab === "silenced" ? ["silenced", "inhibited"] : [tab];
  const words = toWords(search);
  const shown = data.rows.filter(
    (row) => states.includes(row.state) && words.every((word) => textOf(row).includes(word)),
  );
  return (
    <>
      {!data.rules && <p class="soft">{t("alerts.no_rules")}</p>}
      {!shown.length && <p class="soft">{words.length ? t("alerts.none_match") : t(`alerts.none.${tab}`)}</p>}
      <Groups groups={groupAlerts(shown)} alerts={data.rows} again={again} picture={picture} />
      {tab === "silenced" && <Silences silences={data.silences} alerts={data.rows} again={again} />}
    </>
  );
}

const textOf = (row: AlertRow): string =>
  [row.name, row.severity, ...Object.values(row.labels), ...Object.values(row.annotations)].join("\n").toLowerCase();

interface GroupsProps {
  groups: AlertGroup[];
  alerts: readonly AlertRow[];
  again(): void;
  picture: LivePicture;
}

const FEW_ROWS = 8;

function Groups({ groups, alerts, again, picture }: GroupsProps): JSX.Element {
  const [silenced, setSilenced] = useState<AlertRow>();
  const session = useSession();
  return (
    <>
      {groups.map((group) => (
        <Group key={`${group.name}/${group.severity}`} group={group} silence={setSilenced} picture={picture} />
      ))}
      {silenced && (
        <SilenceDialog
          labels={silenced.labels}
          matchers={proposedMatchers(silenced.labels)}
          alerts={alerts}
          author={session.user ?? ""}
          close={(isMade) => {
            setSilenced(undefined);
            if (isMade) again();
          }}
        />
      )}
    </>
  );
}

const LOOKS: Readonly<Record<string, string>> = {
  critical: "severe",
  page: "severe",
  warning: "",
  info: "calm",
  none: "calm",
};

function Group({
  group,
  silence,
  picture,
}: {
  group: AlertGroup;
  silence(row: AlertRow): void;
  picture: LivePicture;
}): JSX.Element {
  const [all, setAll] = useState(false);
  const [first] = group.rows;
  const rows = all ? group.rows : group.rows.slice(0, FEW_ROWS);
  const annotations = first?.annotations ?? {};
  const { meaning, details } = splitMeaning(group.rows);
  return (
    <section class={`alert finding ${LOOKS[group.severity] ?? ""}`} aria-label={group.name} data-alert={group.name}>
      <header>
        <h2>
          <Name text={group.name} />
        </h2>
        {group.severity !== "none" && <span class="severity">{tName("severity", group.severity)}</span>}
        {group.rows.length > 1 && <span class="soft">{t("alerts.count", { count: group.rows.length })}</span>}
        {annotations["runbook_url"] && safeLink(annotations["runbook_url"]) && (
          <a class="small" href={annotations["runbook_url"]} target="_blank" rel="noreferrer">
            {t("alerts.runbook")}
          </a>
        )}
      </header>
      <p>
        <Name text={meaning} />
      </p>
      {annotations["next_step"] && (
        <p class="small">
          <span class="soft">{t("attention.next")}</span> <Name text={annotations["next_step"]} />
        </p>
      )}
      <ul class="alert-rows">
        {rows.map((row, place) => (
          <Row key={row.key} row={row} detail={details[place] ?? ""} silence={silence} picture={picture} />
        ))}
      </ul>
      {group.rows.length > FEW_ROWS && (
        <button onClick={() => setAll(!all)}>
          {all ? t("attention.less") : t("attention.more", { count: group.rows.length })}
        </button>
      )}
    </section>
  );
}

/** Only links that lead to a page: a rule file may come from anywhere. */
const safeLink = (url: string): boolean => /^https?:\/\//.test(url);

function Row({
  row,
  detail,
  silence,
  picture,
}: {
  row: AlertRow;
  detail: string;
  silence(row: AlertRow): void;
  picture: LivePicture;
}): JSX.Element {
  const language = useLanguage();
  const maySilence = mayDo(useSession().role, SILENCING_ROLE);
  const now = serverNow();
  const uuid = row.labels["uuid"];
  const gpu = uuid === undefined ? undefined : picture.gpus.find((one) => one.uuid === uuid);
  const node = picture.nodes.find((one) => one.instance === row.labels["instance"]);
  const slurm = isOfSlurm(row.name);
  const subject = slurm
    ? ["Slurm", row.labels["cluster"]].filter(Boolean).join(" · ")
    : subjectOf(row.labels, node?.name);
  const href = gpu
    ? linkTo("gpu", gpu.uuid)
    : slurm
      ? linkTo("slurm", "", { tab: "nodes" })
      : node
        ? linkTo("node", node.name)
        : undefined;
  const owner = row.annotations["owner"];
  const hours = gpu && row.since !== undefined ? Math.max(now - row.since, 0) / 3600 : undefined;
  return (
    <li data-state={row.state}>
      <span class="subject">
        {href ? (
          <a href={href}>
            <Name text={subject} />
          </a>
        ) : (
          <Name text={subject || row.name} />
        )}
      </span>
      <span>
        <span class="soft">{t("attention.since")}</span>{" "}
        {formatDuration(row.since === undefined ? undefined : now - row.since)}{" "}
        <span class="soft">({formatMoment(row.since, now, language)})</span>
      </span>
      {detail && (
        <span>
          <Name text={detail} />
        </span>
      )}
      {owner && (
        <span>
          <span class="soft">{t("attention.who")}</span> <Name text={tName("owner", owner)} />
        </span>
      )}
      {hours !== undefined && hours >= 0.05 && (
        <span>
          <span class="soft">{t("alerts.affected")}</span> {t("unit.gpu_hours", { hours: formatHours(hours) })}
        </span>
      )}
      <span class="soft">{toldText(row)}</span>
      {maySilence && row.state !== "silenced" && <button onClick={() => silence(row)}>{t("alerts.silence")}</button>}
    </li>
  );
}

/** The receiver of a server that has no channel: it exists because a route must name one. */
const NO_RECEIVER = "nobody";

function toldText(row: AlertRow): string {
  if (row.state === "silenced") return t("alerts.by_silence");
  if (row.state === "inhibited") return t("alerts.by_alert");
  if (row.state === "pending") return t("alerts.not_yet");
  const receivers = row.receivers.filter((one) => one !== NO_RECEIVER);
  return receivers.length ? t("alerts.told", { receivers: receivers.join(", ") }) : t("alerts.told_nobody");
}

function Silences({
  silences,
  alerts,
  again,
}: {
  silences: readonly Silence[];
  alerts: readonly AlertRow[];
  again(): void;
}): JSX.Element {
  const language = useLanguage();
  const [problem, setProblem] = useState("");
  const session = useSession();
  const maySilence = mayDo(session.role, SILENCING_ROLE);
  const now = serverNow();
  const end = async (silence: Silence, reason: string): Promise<void> => {
    try {
      // Alertmanager's API has no comment for an end: it goes to the silence's own comment first.
      const comment = `${silence.comment} · ${t("alerts.ended_by", { user: session.user ?? "–", reason })}`;
      const { id, matchers, startsAt, endsAt, createdBy } = silence;
      await postJson("api/v2/silences", { id, matchers, startsAt, endsAt, createdBy, comment });
      await deleteJson(`api/v2/silence/${encodeURIComponent(id)}`);
      setProblem("");
      again();
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  const columns: Column<Silence>[] = [
    {
      id: "state",
      title: t("column.state"),
      cell: (one) => tName("silence", one.status.state),
      value: (one) => one.status.state,
    },
    {
      id: "matchers",
      title: t("alerts.matchers"),
      wide: true,
      cell: (one) => (
        <code>
          <Name text={one.matchers.map(matcherText).join(", ")} />
        </code>
      ),
      value: (one) => one.matchers.map(matcherText).join(", "),
    },
    {
      id: "held",
      title: t("alerts.held"),
      number: true,
      cell: (one) => String(alerts.filter((row) => row.silencedBy.includes(one.id)).length),
    },
    {
      id: "until",
      title: t("alerts.until"),
      cell: (one) => formatMoment(Date.parse(one.endsAt) / 1000, now, language),
      value: (one) => one.endsAt,
    },
    nameColumn("by", t("alerts.author"), (one) => one.createdBy),
    nameColumn("comment", t("alerts.comment"), (one) => one.comment, { wide: true }),
    {
      id: "end",
      title: "",
      cell: (one) =>
        maySilence && one.status.state !== "expired" && <EndSilence end={(reason) => void end(one, reason)} />,
    },
  ];
  return (
    <section class="section">
      <h2>{t("alerts.silences")}</h2>
      {!maySilence && <RoleNeeded role={SILENCING_ROLE} />}
      <Problem text={problem} />
      <DataTable
        name={t("alerts.silences")}
        rows={silences}
        columns={columns}
        keyOf={(one) => one.id}
        empty={t("alerts.no_silences")}
      />
    </section>
  );
}

function EndSilence({ end }: { end(reason: string): void }): JSX.Element {
  const [open, setOpen] = useState(false);
  if (!open) return <button onClick={() => setOpen(true)}>{t("alerts.end")}</button>;
  return (
    <form
      class="inline"
      onSubmit={(event) => {
        event.preventDefault();
        end(String(new FormData(event.currentTarget).get("reason")).trim());
        setOpen(false);
      }}
    >
      <input
        name="reason"
        required
        aria-label={t("alerts.comment")}
        placeholder={t("alerts.comment")}
        maxLength={300}
      />
      <button type="submit">{t("alerts.end")}</button>
    </form>
  );
}
