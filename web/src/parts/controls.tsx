// Controls that stand in the page's address, so that a link opens the same view: a row of choices, and the search box.
import type { ComponentChildren, JSX } from "preact";
import { t } from "../i18n";
import { changeQuery, route } from "../router";
import { useStore } from "../store";

interface SegmentsProps<T extends string> {
  label: string;
  /** Key of the address' query that holds the choice. */
  queryKey: string;
  choices: readonly T[];
  chosen: T;
  /** The choice of an address without the key; the first one if not given. */
  usual?: T;
  title(choice: T): ComponentChildren;
}

export function Segments<T extends string>(props: SegmentsProps<T>): JSX.Element {
  const { label, queryKey, choices, chosen, usual = choices[0], title } = props;
  return (
    <div class="segments" role="group" aria-label={label}>
      {choices.map((one) => (
        <button
          key={one}
          aria-pressed={one === chosen}
          onClick={() => changeQuery({ [queryKey]: one === usual ? "" : one })}
        >
          {title(one)}
        </button>
      ))}
    </div>
  );
}

/** The parts of a view, of which one is shown. */
export function Tabs<T extends string>(props: Pick<SegmentsProps<T>, "choices" | "chosen" | "title">): JSX.Element {
  return <Segments label={t("alerts.show")} queryKey="tab" {...props} />;
}

/** The search of a view; the key `f` puts the cursor into it. */
export function SearchBox({ label }: { label: string }): JSX.Element {
  const { query } = useStore(route);
  return (
    <input
      type="search"
      id="search"
      placeholder={label}
      aria-label={label}
      value={query["q"] ?? ""}
      onInput={(event) => changeQuery({ q: event.currentTarget.value })}
    />
  );
}
