// Links to the Grafana dashboards that `gpuscope render grafana` writes. In: what the server says about Grafana, a
// dashboard and its variables. Out: an address; none without `--grafana-url`.
import { getJson } from "./api";
import type { LinksAnswer } from "./api-types";
import { createStore } from "./store";
import type { Range } from "./time";

export const links = createStore<LinksAnswer>({});

/** Asked once. A server without this route, or one that needs a login first, has no links. */
export async function loadLinks(): Promise<void> {
  try {
    links.set(await getJson<LinksAnswer>("api/links"));
  } catch {
    links.set({});
  }
}

/** Grafana's times are in milliseconds; `now-6h` means the same there. */
const grafanaTime = (text: string): string => (/^\d/.test(text) ? String(Math.round(Number(text) * 1000)) : text);

export function grafanaAddress(
  base: string | undefined,
  dashboard: "fleet" | "node" | "gpu" | "sessions",
  variables: Readonly<Record<string, string>>,
  range: Range,
): string | undefined {
  if (!base) return undefined;
  const query = new URLSearchParams({ from: grafanaTime(range.from), to: grafanaTime(range.to) });
  for (const [name, value] of Object.entries(variables)) query.append(`var-${name}`, value);
  return `${base}/d/gpuscope-${dashboard}?${query}`;
}
