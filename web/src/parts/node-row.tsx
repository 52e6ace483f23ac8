// One node of the fleet map: its name, the spread over its GPUs, and a cell for each GPU or MIG instance.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import {
  busyOf, findLopsided, holdersOf, levelOf, spreadOf, type Cell, type Measure, type NodeCells,
} from "../fleet";
import { ABSENT, formatValue, shortModel } from "../format";
import { spoken, t } from "../i18n";
import { linkTo } from "../router";
import { GLYPHS, Name, Rug, stateName } from "./marks";

interface RowProps {
  node: NodeCells;
  measure: Measure;
  size: string;
  matching: ReadonlySet<string> | undefined;
  /** On a node's own page every cell is reached by Tab; on the fleet's map by the arrow keys. */
  tabbed?: boolean;
}

export function NodeRow({ node, measure, size, matching, tabbed = false }: RowProps): JSX.Element {
  const spread = size === "small" ? undefined : spreadOf(node.cells);
  const lopsided = findLopsided(node.cells);
  return (
    <section class="node" aria-label={node.name}>
      <header>
        <h2><a href={linkTo("node", node.name)}><Name text={node.name} /></a></h2>
        {size === "small" ? null : <span class="soft small"><Name text={describeModels(node.cells)} /></span>}
        {lopsided && <span class="only">{t("fleet.only_one", { gpu: lopsided.worker.gpu.gpu })}</span>}
        {spread && <Rug spread={spread} />}
      </header>
      <div class="cells">
        {node.cells.map((cell) => (
          <GpuCell key={cell.gpu.uuid} cell={cell} measure={measure} tabbed={tabbed} dim={matching ? !matching.has(cell.gpu.uuid) : false} />
        ))}
      </div>
    </section>
  );
}

function describeModels(cells: readonly Cell[]): string {
  const counts = new Map<string, number>();
  for (const cell of cells) {
    const model = shortModel(cell.gpu.model ?? "");
    if (model) counts.set(model, (counts.get(model) ?? 0) + 1);
  }
  if (!counts.size) return cells.length ? "" : t("fleet.no_gpus_here");
  return [...counts].map(([model, count]) => `${count} × ${model}`).join(", ");
}

interface CellProps { cell: Cell; measure: Measure; dim: boolean; tabbed: boolean }

function GpuCell({ cell, measure, dim, tabbed }: CellProps): JSX.Element {
  if (!cell.parts.length) return <Leaf cell={cell} measure={measure} dim={dim} tabbed={tabbed} />;
  return (
    <div class={dim ? "cell split dim" : "cell split"} role="group" aria-label={t("gpu.gpu", { gpu: cell.gpu.gpu })}>
      {cell.parts.map((part) => (
        <Leaf key={part.gpu.uuid} cell={part} measure={measure} dim={false} tabbed={tabbed} />
      ))}
    </div>
  );
}

function Leaf({ cell, measure, dim, tabbed }: CellProps): JSX.Element {
  const { gpu } = cell;
  const level = levelOf(gpu, measure);
  const holders = holdersOf(cell).join(", ");
  const value = valueText(cell, measure, holders);
  const percent = level === undefined ? "" : `${Math.round(level * 100)}%`;
  const truth = [gpu.sm, gpu.tensor].map((one) => (one === undefined ? "" : `${Math.round(one * 100)}%`));
  const hue = measure === "holder" && holders ? hueOf(holders) : 0;
  const href = linkTo("gpu", gpu.uuid);
  const slices = Number(/^(\d+)g/.exec(gpu.profile ?? "")?.[1] ?? 1);
  const words = spoken.get().code;
  // The same element as before is not compared again: most of a thousand cells do not change in a second.
  return useMemo(() => {
    return (
      <a class={dim ? "cell dim" : "cell"} href={href} tabIndex={tabbed ? 0 : -1} data-s={gpu.state} data-uuid={gpu.uuid}
        {...(hue ? { "data-hue": "" } : {})} style={{ "--v": percent, "--slices": slices, "--hue": hue }}>
        <span class={percent ? "level" : "level none"} />
        <span class="visually-hidden">{gpu.node} {stateName(gpu.state)} GPU </span>
        <span class="top">
          <span class="index">{gpu.profile ?? gpu.gpu}</span>
          <span class="value">
            {GLYPHS[gpu.state] && <span class="glyph" aria-hidden="true">{GLYPHS[gpu.state]}</span>}
            <span class="value">{measure === "holder" ? formatValue(busyOf(gpu), "ratio") : value}</span>
          </span>
        </span>
        <span class="who"><Name text={holders} /></span>
        {measure === "busy" && !gpu.parent && (
          <span class="truth" aria-hidden="true">
            {truth.map((width, place) => <i key={place} style={{ "--v": width || "0" }} />)}
          </span>
        )}
      </a>
    );
  }, [gpu.state, gpu.uuid, gpu.gpu, gpu.node, value, percent, holders, dim, href, hue, truth.join(), measure, words]);
}

function valueText(cell: Cell, measure: Measure, holders: string): string {
  const { gpu } = cell;
  if (gpu.state === "lost") return ABSENT;
  switch (measure) {
    case "busy": return formatValue(busyOf(gpu), "ratio");
    case "memory": return formatValue(levelOf(gpu, "memory"), "ratio");
    case "power": return formatValue(gpu.power, "watts");
    case "temperature": return formatValue(gpu.temperature, "celsius");
    case "holder": return holders || t("fleet.free");
  }
}

/** A steady hue for a name, from green to violet: red and amber are for trouble. */
function hueOf(name: string): number {
  let hash = 7;
  for (let at = 0; at < name.length; at += 1) hash = (hash * 31 + name.charCodeAt(at)) >>> 0;
  return 130 + (hash % 200);
}
