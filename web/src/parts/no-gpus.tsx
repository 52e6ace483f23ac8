// The fleet view where no GPU is seen: why, in the words of the log, and what to do.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { fetchTargetErrors } from "../api";
import type { NodeCells } from "../fleet";
import { t } from "../i18n";
import { Name } from "./marks";

const REASONS_EVERY_MS = 5000;

export function NoGpus({ nodes, findings }: { nodes: NodeCells[]; findings: JSX.Element }): JSX.Element {
  const reasons = useReasons();
  const alive = nodes.some((node) => !node.gone);
  return (
    <div class="blank">
      <h1>{t("fleet.zero")}</h1>
      {reasons.length > 0 && (
        <>
          <h2>{t("fleet.zero_why")}</h2>
          <ul class="reasons">
            {reasons.map((reason) => (
              <li key={reason}>
                <Name text={reason} />
              </li>
            ))}
          </ul>
        </>
      )}
      {(alive || !nodes.length) && <p>{alive ? t("fleet.zero_help") : t("fleet.no_nodes")}</p>}
      {alive && <code>gpuscope doctor</code>}
      {nodes.length > 0 && findings}
    </div>
  );
}

/** Why no source has found a GPU, as the log says it; asked for only where there is none. */
function useReasons(): readonly string[] {
  const [reasons, setReasons] = useState<readonly string[]>([]);
  useEffect(() => {
    const stop = new AbortController();
    const ask = (): void =>
      void fetchTargetErrors(stop.signal).then(
        (found) => setReasons(found),
        () => undefined, // an engine without targets
      );
    ask();
    const timer = setInterval(ask, REASONS_EVERY_MS);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, []);
  return reasons;
}
