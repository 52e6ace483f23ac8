// A table of anything: sorted by its heads, in pieces of a hundred rows, as cards on a phone, and saved as CSV. The
// columns say how a row is shown, sorted and exported; nothing here knows what a row is.
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { csvText, saveFile, type CsvValue } from "../csv";
import { ABSENT } from "../format";
import { useLanguage } from "../i18n";
import { changeQuery, route } from "../router";
import { sortByValue, type SortValue } from "../sorting";
import { useStore } from "../store";
import { Name } from "./marks";
import { ColumnHead, MoreRows, useRowLimit } from "./table-parts";

export interface Column<T> {
  id: string;
  title: string;
  cell(row: T): ComponentChildren;
  /** What the column is sorted and exported by; a column without it is neither. Absent values stand last. */
  value?(row: T): SortValue;
  number?: boolean;
  /** On a phone the column takes the whole width of its card. */
  wide?: boolean;
}

interface TableProps<T> {
  name: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  keyOf(row: T): string;
  /** The column that is sorted by at first; a minus before it sorts downwards. */
  sort?: string;
  /** Key of the query under which the order stands, where a view has several tables. */
  sortKey?: string;
  empty: string;
  rowClass?(row: T): string;
}

export function DataTable<T>({
  name,
  rows,
  columns,
  keyOf,
  sort = "",
  sortKey = "sort",
  empty,
  rowClass,
}: TableProps<T>): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const { limit, raise } = useRowLimit();
  const chosen = query[sortKey] ?? sort;
  const sorted = useMemo(() => sortRows(rows, columns, chosen), [rows, columns, chosen]);
  if (!rows.length) return <p class="soft">{empty}</p>;
  return (
    <div class="scroll cards" tabIndex={0} role="region" aria-label={name}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <Head key={column.id} column={column} chosen={chosen} sortKey={sortKey} />
            ))}
          </tr>
        </thead>
        <tbody>
          {sorted.slice(0, limit).map((row) => (
            <tr key={keyOf(row)} {...(rowClass ? { class: rowClass(row) } : {})}>
              {columns.map((column) => (
                <td
                  key={column.id}
                  class={[column.number && "number", column.wide && "wide"].filter(Boolean).join(" ")}
                  data-column={column.id}
                  data-name={column.title}
                >
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      <MoreRows left={sorted.length - limit} raise={raise} />
    </div>
  );
}

function Head<T>({ column, chosen, sortKey }: { column: Column<T>; chosen: string; sortKey: string }): JSX.Element {
  const down = chosen === `-${column.id}`;
  const current = down || chosen === column.id;
  // Of numbers the largest come first: who sorts by cost wants the most expensive.
  const next = current ? (down ? column.id : `-${column.id}`) : column.number ? `-${column.id}` : column.id;
  return (
    <ColumnHead
      title={column.title}
      isNumber={column.number ?? false}
      order={current ? (down ? "descending" : "ascending") : "none"}
      choose={column.value && (() => changeQuery({ [sortKey]: next }))}
    />
  );
}

/** A column of names from outside. An absent or empty name is shown as a dash. */
export const nameColumn = <T,>(
  id: string,
  title: string,
  name: (row: T) => string | undefined,
  look: Pick<Column<T>, "wide"> = {},
): Column<T> => ({ id, title, cell: (row) => <Name text={name(row) || ABSENT} />, value: name, ...look });

export function sortRows<T>(rows: readonly T[], columns: readonly Column<T>[], chosen: string): readonly T[] {
  const down = chosen.startsWith("-");
  const value = columns.find((column) => column.id === chosen.replace(/^-/, ""))?.value;
  return value ? sortByValue(rows, value, down) : rows;
}

export function CsvButton<T>({
  file,
  rows,
  columns,
}: {
  file: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
}): JSX.Element {
  const exported = columns.filter((column) => column.value);
  const save = (): void =>
    saveFile(
      `gpuscope-${file}.csv`,
      "text/csv",
      csvText(
        exported.map((column) => column.id),
        rows.map((row) => exported.map((column): CsvValue => column.value?.(row))),
      ),
    );
  return (
    <button onClick={save} disabled={!rows.length}>
      CSV
    </button>
  );
}
