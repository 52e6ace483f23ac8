// The link to the same view in Grafana; nothing where no Grafana is set.
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { grafanaAddress, links, loadLinks } from "../grafana";
import { t } from "../i18n";
import { route } from "../router";
import { useStore } from "../store";
import { readRange } from "../time";

interface GrafanaLinkProps {
  dashboard: "fleet" | "node" | "gpu" | "sessions";
  variables?: Readonly<Record<string, string>>;
}

export function GrafanaLink({ dashboard, variables = {} }: GrafanaLinkProps): JSX.Element | null {
  const base = useStore(links).grafana;
  const { query } = useStore(route);
  useEffect(() => void loadLinks(), []);
  const address = grafanaAddress(base, dashboard, variables, readRange(query));
  if (!address) return null;
  return (
    <a class="button" href={address} target="_blank" rel="noreferrer">
      {t("shell.grafana")}
    </a>
  );
}
