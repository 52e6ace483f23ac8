// The one definition of panels: drawn here, and by Grafana dashboards built from the same file.
import definition from "../../src/gpuscope/serve/render/panels.json";
import type { Unit } from "./format";

export interface PanelQuery {
  expr: string;
  /** `{{label}}` is filled from the series. */
  legend: string;
  /** Series that are borders rather than measurements: drawn dashed, in the colour of what crossing them means. */
  limit?: "notice" | "warning" | "critical";
  /** The value is when something happened, not how much. */
  value?: "timestamp";
}
export interface Panel {
  id: string;
  scope: "gpu" | "node" | "host";
  kind: "lines" | "levels" | "states" | "events" | "spans";
  title: string;
  help: string;
  unit: Unit;
  min?: number;
  max?: number;
  queries: PanelQuery[];
  /** What a line is called, where the legend of its query does not tell the GPUs of several nodes apart. */
  nameOf?(metric: Readonly<Record<string, string>>): string | undefined;
}

export const PANELS = definition.panels as readonly Panel[];
export const panelById = (id: string): Panel | undefined => PANELS.find((panel) => panel.id === id);
export const panelsOf = (scope: Panel["scope"]): Panel[] => PANELS.filter((panel) => panel.scope === scope);

export type Variables = Readonly<Record<string, string>>;

/** Values stand inside PromQL strings: what would end the string is escaped. */
const escapeValue = (value: string): string => value.replace(/\\/g, "\\\\").replace(/"/g, '\\"').replace(/\n/g, "\\n");

/** RE2 special characters, so that a UUID or a name matches as itself. */
export const toRegex = (values: readonly string[]): string =>
  values.map((value) => value.replace(/[\\^$.|?*+()[\]{}]/g, "\\$&")).join("|");

export function fillExpression(expr: string, variables: Variables): string {
  return expr.replace(/\$(\w+)/g, (whole, name: string) => {
    const value = variables[name];
    return value === undefined ? whole : escapeValue(value);
  });
}

export function fillLegend(legend: string, metric: Readonly<Record<string, string>>): string {
  return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name: string) => metric[name] ?? "");
}
