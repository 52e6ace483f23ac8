// Channels of notifications, each with its state and a button that sends a test message.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { errorText, getJson, postJson } from "../api";
import type { ChannelJson, NotifyAnswer, NotifyTestAnswer } from "../api-types";
import { formatMoment } from "../format";
import { spoken, t } from "../i18n";
import { serverNow } from "../live";
import { mayDo, useSession } from "../session";
import { AskedState, useAsked } from "./asked";
import { DataTable, nameColumn, type Column } from "./data-table";
import { Name } from "./marks";
import { RoleNeeded } from "./problem";

export const momentText = (at: number | null): string =>
  at === null ? "–" : formatMoment(at, serverNow(), spoken.get().code);

export function channelColumns(): Column<ChannelJson>[] {
  return [
    nameColumn("receiver", t("channels.receiver"), (one) => one.receiver),
    { id: "kind", title: t("channels.kind"), cell: (one) => one.kind, value: (one) => one.kind },
    nameColumn("to", t("channels.to"), (one) => one.sent_to),
    {
      id: "state",
      title: t("column.state"),
      cell: (one) =>
        one.up === null ? (
          t("channels.unused")
        ) : one.up ? (
          t("channels.works")
        ) : (
          <b class="crit">✕ {t("channels.fails")}</b>
        ),
      value: (one) => (one.up === null ? "" : one.up ? "up" : "down"),
    },
    { id: "sent", title: t("channels.sent"), number: true, cell: (one) => String(one.sent), value: (one) => one.sent },
    {
      id: "failed",
      title: t("channels.failed"),
      number: true,
      cell: (one) => String(one.failed),
      value: (one) => one.failed,
    },
    {
      id: "last",
      title: t("channels.last"),
      cell: (one) => momentText(one.last_sent_at),
      value: (one) => one.last_sent_at ?? undefined,
    },
    nameColumn("error", t("channels.error"), (one) => one.last_error, { wide: true }),
  ];
}

export function ChannelSettings(): JSX.Element {
  const session = useSession();
  const asked = useAsked((signal) => getJson<NotifyAnswer>("api/notify", signal), "", 10_000);
  const [result, setResult] = useState<{ receiver: string; lines: string[]; failed: boolean }>();
  const [running, setRunning] = useState("");
  const test = async (receiver: string): Promise<void> => {
    setRunning(receiver);
    try {
      const { channels } = await postJson<NotifyTestAnswer>("api/notify/test", { receiver });
      const failed = channels.some((one) => one.error);
      setResult({
        receiver,
        failed,
        lines: channels.map((one) => `${one.channel}: ${one.error || t("channels.accepted")}`),
      });
    } catch (error) {
      setResult({ receiver, failed: true, lines: [errorText(error)] });
    }
    setRunning("");
    asked.again();
  };
  const may = mayDo(session.role, "editor");
  const columns: Column<ChannelJson>[] = [
    ...channelColumns(),
    {
      id: "test",
      title: "",
      cell: (one) => (
        <button disabled={!may || running !== ""} onClick={() => void test(one.receiver)}>
          {running === one.receiver ? "…" : t("channels.test")}
        </button>
      ),
    },
  ];
  return (
    <section>
      <AskedState asked={asked} what={t("channels.title")} />
      {asked.data?.reload_error && (
        <p class="strip note" role="alert">
          <Name text={asked.data.reload_error} />
        </p>
      )}
      {result && (
        <p class={result.failed ? "crit" : ""} role="status">
          <Name text={result.lines.join("; ")} />
        </p>
      )}
      {!may && <RoleNeeded role="editor" />}
      {asked.data && (
        <DataTable
          name={t("channels.title")}
          rows={asked.data.channels}
          columns={columns}
          keyOf={(one) => one.channel}
          empty={t("channels.none")}
        />
      )}
    </section>
  );
}
