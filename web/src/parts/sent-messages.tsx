// Who was notified: the messages that were sent, newest first, with the alerts in each; and the channels.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { getJson } from "../api";
import type { NotificationJson, NotificationsAnswer, NotifyAnswer } from "../api-types";
import { subjectOf } from "../alerts";
import { toWords } from "../fleet";
import { t, tName } from "../i18n";
import { AskedState, useAsked } from "./asked";
import { channelColumns, momentText } from "./channel-settings";
import { DataTable, type Column } from "./data-table";
import { Name } from "./marks";

const EVERY_MS = 10_000;
const PAGE = 100;

export function SentMessages({ search }: { search: string }): JSX.Element {
  const [limit, setLimit] = useState(PAGE);
  const sent = useAsked(
    (signal) => getJson<NotificationsAnswer>(`api/notifications?limit=${limit}`, signal),
    String(limit),
    EVERY_MS,
  );
  const channels = useAsked((signal) => getJson<NotifyAnswer>("api/notify", signal), "", EVERY_MS);
  const words = toWords(search);
  const rows = (sent.data?.notifications ?? []).filter((one) =>
    words.every((word) => JSON.stringify(one).toLowerCase().includes(word)),
  );
  return (
    <>
      <AskedState asked={sent} what={t("alerts.tab.sent")} />
      {sent.data && (
        <DataTable
          name={t("alerts.tab.sent")}
          rows={rows}
          columns={messageColumns()}
          keyOf={(one) => String(one.id)}
          empty={t("sent.none")}
        />
      )}
      {sent.data?.next && <button onClick={() => setLimit(limit + PAGE)}>{t("sent.more")}</button>}
      <section class="section">
        <h2>{t("channels.title")}</h2>
        <AskedState asked={channels} what={t("channels.title")} />
        {channels.data && (
          <DataTable
            name={t("channels.title")}
            rows={channels.data.channels}
            columns={channelColumns()}
            keyOf={(one) => one.channel}
            sortKey="csort"
            empty={t("channels.none")}
          />
        )}
      </section>
    </>
  );
}

function messageColumns(): Column<NotificationJson>[] {
  return [
    {
      id: "time",
      title: t("settings.when"),
      cell: (one) => momentText(one.started_at),
      value: (one) => one.started_at,
    },
    {
      id: "to",
      title: t("channels.to"),
      cell: (one) => <Name text={[one.receiver, one.kind, one.sent_to].filter(Boolean).join(" · ")} />,
      value: (one) => `${one.receiver} ${one.sent_to}`,
    },
    {
      id: "outcome",
      title: t("column.state"),
      cell: (one) => (
        <span class={one.outcome === "failed" ? "crit" : ""}>
          {tName("outcome", one.outcome)}
          {one.error && <Name text={`: ${one.error}`} />}
        </span>
      ),
      value: (one) => one.outcome,
    },
    {
      id: "alerts",
      title: t("alerts.held"),
      wide: true,
      cell: (one) => (
        <Name
          text={`${t("sent.counts", { firing: one.firing, resolved: one.resolved })}: ${one.alerts
            .slice(0, 3)
            .map((alert) => [alert.labels["alertname"], subjectOf(alert.labels)].filter(Boolean).join(" "))
            .join(", ")}${one.firing + one.resolved > 3 ? " …" : ""}`}
        />
      ),
      value: (one) => one.firing + one.resolved,
    },
    {
      id: "why",
      title: t("slurm.why"),
      cell: (one) => `${one.reason}${one.repeats ? ` × ${one.repeats + 1}` : ""}`,
      value: (one) => one.reason,
    },
  ];
}
