// Who holds what, since when, and how much of it works.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { queryInstant } from "../api";
import { saveFile } from "../csv";
import { t, useLanguage } from "../i18n";
import { live, serverNow, type LivePicture } from "../live";
import { SearchBox, Segments } from "../parts/controls";
import { GrafanaLink } from "../parts/grafana-link";
import { SessionTable } from "../parts/session-table";
import { changeQuery, route } from "../router";
import {
  COLUMNS,
  filterSessions,
  groupSessions,
  GROUPINGS,
  sortSessions,
  toCsv,
  HOUR_QUERY,
  toJson,
  toRows,
  type ColumnName,
} from "../sessions";
import { useStore } from "../store";

const HOURS_EVERY_MS = 60_000;

export function Sessions({ picture }: { picture: LivePicture }): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const hours = useHours();
  const by = GROUPINGS.find((one) => one === query["by"]) ?? "user";
  const column = COLUMNS.find((one) => one === query["sort"]) ?? "since";
  const down = query["down"] === "1";
  const rows = useMemo(
    () => sortSessions(filterSessions(toRows(picture.sessions, picture.gpus, hours), query["q"] ?? ""), column, down),
    [picture, hours, query["q"], column, down],
  );
  const choose = (next: ColumnName): void => changeQuery({ sort: next, down: next === column && !down ? "1" : "" });
  return (
    <div class="data">
      <div class="head">
        <h1>{t("nav.sessions")}</h1>
        <span class="soft" role="status">
          {t("sessions.count", {
            processes: t("sessions.processes", { count: rows.length }),
            gpus: t("count.gpus", { count: new Set(rows.map((row) => row.uuid)).size }),
          })}
        </span>
        <GrafanaLink dashboard="sessions" />
      </div>
      <div class="controls">
        <Segments
          label={t("sessions.by")}
          queryKey="by"
          choices={GROUPINGS}
          chosen={by}
          usual="user"
          title={(one) => t(`group.${one}`)}
        />
        <SearchBox label={t("sessions.search")} />
        <button onClick={() => saveFile("gpuscope-sessions.csv", "text/csv", toCsv(rows))}>CSV</button>
        <button onClick={() => saveFile("gpuscope-sessions.json", "application/json", toJson(rows))}>JSON</button>
      </div>
      <SessionTable
        sessions={rows}
        sort={{ column, down, choose }}
        {...(by === "none" ? {} : { groups: groupSessions(rows, by) })}
      />
    </div>
  );
}

/** How much of the last hour each process worked; absent where the store does not know. */
function useHours(): ReadonlyMap<string, number> {
  const [hours, setHours] = useState<ReadonlyMap<string, number>>(new Map());
  const ready = useStore(live).status === "ok";
  useEffect(() => {
    if (!ready) return undefined;
    const stop = new AbortController();
    const ask = async (): Promise<void> => {
      const data = await queryInstant(HOUR_QUERY, serverNow(), stop.signal);
      if (data.resultType !== "vector") return;
      setHours(
        new Map(data.result.map(({ metric, value }) => [`${metric["uuid"]}/${metric["pid"]}`, Number(value[1])])),
      );
    };
    const again = (): void => void ask().catch(() => undefined);
    again();
    const timer = setInterval(again, HOURS_EVERY_MS);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [ready]);
  return hours;
}
