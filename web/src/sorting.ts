// The one order of every table: numbers by size, names as people count (`node2` before `node10`), absent values last
// whichever way a column is sorted.
import { naturalOrder } from "./format";

export type SortValue = string | number | undefined;

export function sortByValue<T>(rows: readonly T[], value: (row: T) => SortValue, isDescending: boolean): T[] {
  return [...rows].sort((left, right) => {
    const [one, other] = [value(left), value(right)];
    if (one === undefined || other === undefined) return one === other ? 0 : one === undefined ? 1 : -1;
    const order =
      typeof one === "number" && typeof other === "number" ? one - other : naturalOrder(String(one), String(other));
    return isDescending ? -order : order;
  });
}
