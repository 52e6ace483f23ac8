// A view whose code comes when it is first opened: the fleet is on screen before the charts' code has arrived.
import type { FunctionComponent, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { t } from "../i18n";

export function lazy<P extends object>(load: () => Promise<FunctionComponent<P>>): FunctionComponent<P> {
  let Loaded: FunctionComponent<P> | undefined;
  return function Lazy(props: P): JSX.Element {
    const [state, setState] = useState<"loading" | "here" | "failed">(Loaded ? "here" : "loading");
    useEffect(() => {
      if (Loaded) return;
      load().then(
        (component) => {
          Loaded = component;
          setState("here");
        },
        () => setState("failed"),
      );
    }, []);
    if (Loaded) return <Loaded {...props} />;
    return (
      <div class="blank" role="status">
        {state === "failed" ? t("shell.load_failed") : t("panel.loading")}
        {state === "failed" && <button onClick={() => location.reload()}>{t("time.refresh")}</button>}
      </div>
    );
  };
}
