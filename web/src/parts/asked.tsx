// What a view asks of the server beside the live picture: asked when it opens and again now and then, kept while the
// server does not answer, and shown with the reason where there is nothing to show.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { errorText, QueryError } from "../api";
import { t } from "../i18n";
import { live } from "../live";
import { useStore } from "../store";

export interface Asked<T> {
  data?: T;
  problem?: string;
  /** The server answered, and does not have it: another version, or an engine without it. */
  refused?: boolean;
  again(): void;
}

/** `ask` is called anew when `key` changes. */
export function useAsked<T>(ask: (signal: AbortSignal) => Promise<T>, key: string, everyMs: number): Asked<T> {
  const [state, setState] = useState<{ data?: T; problem?: string; refused?: boolean; key: string }>({ key });
  const [turn, setTurn] = useState(0);
  const ready = useStore(live).status === "ok";
  useEffect(() => {
    if (!ready) return undefined;
    const stop = new AbortController();
    const look = (): void => {
      if (document.hidden) return;
      ask(stop.signal).then(
        (data) => setState({ data, key }),
        (error: unknown) => {
          if (stop.signal.aborted) return;
          const problem = errorText(error);
          setState((old) => ({
            ...(old.key === key && old.data !== undefined ? { data: old.data } : {}),
            problem,
            refused: error instanceof QueryError,
            key,
          }));
        },
      );
    };
    look();
    const timer = setInterval(look, everyMs);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [ready, key, turn]);
  const shown = state.key === key ? state : { key };
  return { ...shown, again: () => setTurn((old) => old + 1) };
}

/** What stands in place of numbers that are not there. */
export function AskedState({ asked, what }: { asked: Asked<unknown>; what: string }): JSX.Element | null {
  if (asked.problem !== undefined)
    return (
      <p class={asked.data === undefined ? "message failed" : "strip note"} role="alert">
        {t(asked.data === undefined ? "asked.failed" : "asked.old", { what })} <bdi>{asked.problem}</bdi>{" "}
        <button onClick={asked.again}>{t("time.refresh")}</button>
      </p>
    );
  if (asked.data === undefined)
    return (
      <p class="soft" role="status">
        {t("panel.loading")}
      </p>
    );
  return null;
}

/** A view with nothing in it: why, and what to do. */
export function Blank({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="blank">
      <h1>{title}</h1>
      {children}
    </div>
  );
}
