// Sessions as a table; sorted by its heads where it may be.
import type { JSX } from "preact";
import { formatDuration, formatMoment, formatValue } from "../format";
import { t, useLanguage } from "../i18n";
import { serverNow } from "../live";
import { linkTo } from "../router";
import { COLUMNS, ownerOf, roomForEach, type ColumnName, type Row, type SessionGroup } from "../sessions";
import { Name, stateName } from "./marks";
import { ColumnHead, MoreRows, useRowLimit } from "./table-parts";

interface SortProps {
  column: ColumnName;
  down: boolean;
  choose(column: ColumnName): void;
}
interface TableProps {
  sessions: readonly Row[];
  groups?: readonly SessionGroup[];
  sort?: SortProps;
}

const LEAST_OF_A_GROUP = 2;
const NUMBERS: ReadonlySet<ColumnName> = new Set(["memory", "sm", "hour", "pid"]);

export function SessionTable({ sessions, groups, sort }: TableProps): JSX.Element {
  useLanguage();
  const withHour = sessions.some((one) => one.hour !== undefined);
  const columns = COLUMNS.filter((column) => column !== "hour" || withHour);
  const { limit, raise } = useRowLimit();
  const cut = groups && cutGroups(groups, limit);
  const left = sessions.length - (cut ? cut.reduce((sum, one) => sum + one.rows.length, 0) : limit);
  if (!sessions.length) return <p class="soft">{t("sessions.none")}</p>;
  return (
    <div class="scroll sessions" tabIndex={0} role="region" aria-label={t("sessions.table")}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <Head key={column} column={column} sort={sort} />
            ))}
          </tr>
        </thead>
        {cut ? (
          cut.map(({ group, rows }) => <Group key={group.name} group={group} rows={rows} columns={columns} />)
        ) : (
          <tbody>
            {sessions.slice(0, limit).map((row) => (
              <SessionRow key={`${row.uuid}${row.pid}`} row={row} columns={columns} />
            ))}
          </tbody>
        )}
      </table>
      <MoreRows left={left} raise={raise} />
    </div>
  );
}

/** Every group with its sum, and of each as many rows as there is room for. */
function cutGroups(groups: readonly SessionGroup[], most: number): { group: SessionGroup; rows: readonly Row[] }[] {
  const shown = groups.slice(0, most);
  const each = Math.max(
    roomForEach(
      shown.map((group) => group.rows.length),
      most,
    ),
    LEAST_OF_A_GROUP,
  );
  return shown.map((group) => ({ group, rows: group.rows.slice(0, each) }));
}

function Head({ column, sort }: { column: ColumnName; sort: SortProps | undefined }): JSX.Element {
  const order = sort?.column !== column ? "none" : sort.down ? "descending" : "ascending";
  return (
    <ColumnHead
      title={t(`column.${column}`)}
      isNumber={NUMBERS.has(column)}
      order={order}
      choose={sort && (() => sort.choose(column))}
    />
  );
}

interface GroupProps {
  group: SessionGroup;
  rows: readonly Row[];
  columns: readonly ColumnName[];
}

function Group({ group, rows, columns }: GroupProps): JSX.Element {
  const share = group.gpus ? group.working / group.gpus : 0;
  return (
    <tbody>
      {group.name !== "" || group.rows.length ? (
        <tr class="group">
          <th scope="rowgroup" colSpan={columns.length}>
            <b>
              <Name text={group.name || t("sessions.no_name")} />
            </b>
            <span>
              {t("sessions.group", {
                count: group.gpus,
                working: group.working,
                memory: formatValue(group.memory, "bytes"),
              })}
            </span>
            <span class="works" aria-hidden="true">
              <i style={{ "--v": `${Math.round(share * 100)}%` }} />
            </span>
            {group.held > 0 && (
              <span class="warn">
                <b aria-hidden="true">z</b> {t("sessions.not_working", { count: group.held })}
              </span>
            )}
          </th>
        </tr>
      ) : null}
      {rows.map((row) => (
        <SessionRow key={`${row.uuid}${row.pid}`} row={row} columns={columns} />
      ))}
      {rows.length < group.rows.length && (
        <tr class="rest">
          <td colSpan={columns.length} class="soft">
            {t("sessions.rest", { count: group.rows.length - rows.length })}
          </td>
        </tr>
      )}
    </tbody>
  );
}

function SessionRow({ row, columns }: { row: Row; columns: readonly ColumnName[] }): JSX.Element {
  return (
    <tr>
      {columns.map((column) => (
        <td
          key={column}
          class={NUMBERS.has(column) ? "number" : ""}
          data-column={column}
          data-name={t(`column.${column}`)}
        >
          {content(row, column)}
        </td>
      ))}
    </tr>
  );
}

function content(row: Row, column: ColumnName): JSX.Element | string {
  switch (column) {
    case "node":
      return (
        <a href={linkTo("node", row.node)}>
          <Name text={row.node} />
        </a>
      );
    case "gpu":
      return <a href={linkTo("gpu", row.uuid)}>{row.gpu}</a>;
    case "user":
      return <Name text={row.user ?? "–"} />;
    case "owner":
      return <Name text={ownerOf(row) || "–"} />;
    case "command":
      return <Name text={row.command ?? "–"} />;
    case "pid":
      return row.pid === undefined ? "–" : String(row.pid);
    case "memory":
      return formatValue(row.memory, "bytes");
    case "sm":
      return formatValue(row.sm, "ratio");
    case "hour":
      return formatValue(row.hour, "ratio");
    case "since":
      return <Since at={row.since} />;
    case "state":
      return (
        <span class={row.state === "idle" ? "warn" : ""}>
          {row.state === "idle" && (
            <span class="glyph" aria-hidden="true">
              z
            </span>
          )}
          {row.state === "idle" ? stateName("held") : stateName(row.state)}
        </span>
      );
  }
}

function Since({ at }: { at: number | undefined }): JSX.Element {
  const language = useLanguage();
  const now = serverNow();
  return <span title={formatMoment(at, now, language)}>{formatDuration(at === undefined ? undefined : now - at)}</span>;
}
