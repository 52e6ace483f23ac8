// What every table of the page has: heads that sort it, and a limit of rows that a button raises.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { t } from "../i18n";

export type SortOrder = "ascending" | "descending" | "none";

interface HeadProps {
  title: string;
  isNumber: boolean;
  order: SortOrder;
  /** Absent where the table is not sorted by this column. */
  choose?: (() => void) | undefined;
}

const ARROWS: Record<SortOrder, string> = { ascending: " ↑", descending: " ↓", none: "" };

export function ColumnHead({ title, isNumber, order, choose }: HeadProps): JSX.Element {
  const classes = isNumber ? "number" : "";
  if (!title) return <td />; // a column of buttons
  if (!choose)
    return (
      <th scope="col" class={classes}>
        {title}
      </th>
    );
  return (
    <th scope="col" class={classes} aria-sort={order}>
      <button onClick={choose}>
        {title}
        {ARROWS[order]}
      </button>
    </th>
  );
}

/** More than a screen or two at once nobody reads, and 1,000 rows are slow to draw every second. */
const ROWS_AT_ONCE = 100;

export function useRowLimit(): { limit: number; raise(): void } {
  const [limit, setLimit] = useState(ROWS_AT_ONCE);
  return { limit, raise: () => setLimit(limit + ROWS_AT_ONCE) };
}

/** `left` rows are not shown yet. */
export function MoreRows({ left, raise }: { left: number; raise(): void }): JSX.Element | null {
  if (left <= 0) return null;
  return (
    <p>
      <button onClick={raise}>
        {left > ROWS_AT_ONCE
          ? t("sessions.more", { count: ROWS_AT_ONCE, left })
          : t("sessions.more_all", { count: left })}
      </button>
    </p>
  );
}
