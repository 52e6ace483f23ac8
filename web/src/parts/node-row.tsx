// One node of the fleet map: its name, the spread over its GPUs, and a cell for each GPU or MIG instance.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { busyOf, holdersOf, levelOf, spreadOf, type Cell, type Measure, type NodeCells } from "../fleet";
import { ABSENT, formatMoment, formatValue, shortModel } from "../format";
import { spoken, t } from "../i18n";
import { serverNow, type Finding, type Gone, type LiveGpu } from "../live";
import { ownerLabel } from "../finding-text";
import { linkTo } from "../router";
import { GLYPHS, Name, Rug, spreadText, stateName } from "./marks";

interface RowProps {
  node: NodeCells;
  measure: Measure;
  size: string;
  matching: ReadonlySet<string> | undefined;
  /** On a node's own page every cell is reached by Tab; on the fleet's map by the arrow keys. */
  tabbed?: boolean;
  /** The colour of each large holder, 1 to 8. */
  holders?: ReadonlyMap<string, number>;
  findings?: readonly Finding[];
}

const NO_FINDINGS: readonly Finding[] = [];
const NO_HOLDERS: ReadonlyMap<string, number> = new Map();

export function NodeRow({
  node,
  measure,
  size,
  matching,
  tabbed = false,
  holders = NO_HOLDERS,
  findings = NO_FINDINGS,
}: RowProps): JSX.Element {
  const spread = size === "small" ? undefined : spreadOf(node.cells);
  const uneven = findings.filter((one) => one.kind === "only_some_work" && one.node === node.name);
  return (
    <section class="node" aria-label={node.name}>
      <header>
        <h2>
          {node.isGroup ? (
            <Name text={node.name || t("fleet.no_group")} />
          ) : (
            <a href={linkTo("node", node.name)}>
              <Name text={node.name} />
            </a>
          )}
        </h2>
        {size === "small" ? null : (
          <span class="soft small">
            <Name text={node.gone && !node.cells.length ? "" : describeModels(node.cells)} />
            {node.isGroup && spread ? ` · ${spreadText(spread)}` : ""}
          </span>
        )}
        {node.gone && (
          <span class="gone-note" title={node.gone.why}>
            {goneText(node.gone)}
            {size === "small" || !node.gone.why ? "" : <Name text={`: ${node.gone.why}`} />}
          </span>
        )}
        {uneven.map((one) => (
          <span class="only" key={one.id}>
            <Name
              text={t("fleet.only_one", {
                gpu: String(one.args["working"]),
                owner: ownerLabel(one.owner) || t("findings.unknown_owner"),
              })}
            />
          </span>
        ))}
        {spread && <Rug spread={spread} />}
      </header>
      <div class="cells">
        {node.cells.map((cell) => (
          <GpuCell
            key={cell.gpu.uuid}
            cell={cell}
            measure={measure}
            tabbed={tabbed}
            size={size}
            holders={holders}
            dim={matching ? !matching.has(cell.gpu.uuid) : false}
          />
        ))}
      </div>
    </section>
  );
}

/** "no data since 14:03:20", or that it never answered. */
export function goneText(gone: Gone): string {
  const time = formatMoment(gone.since, serverNow(), spoken.get().code);
  return t(gone.answered ? "fleet.gone_since" : "fleet.never", { time });
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

interface CellProps {
  cell: Cell;
  measure: Measure;
  dim: boolean;
  tabbed: boolean;
  size: string;
  holders: ReadonlyMap<string, number>;
}

function GpuCell(props: CellProps): JSX.Element {
  const { cell, dim } = props;
  if (!cell.parts.length) return <Leaf {...props} />;
  return (
    <div class={dim ? "cell split dim" : "cell split"} role="group" aria-label={t("gpu.gpu", { gpu: cell.gpu.gpu })}>
      {cell.parts.map((part) => (
        <Leaf key={part.gpu.uuid} {...props} cell={part} dim={false} />
      ))}
    </div>
  );
}

function Leaf({ cell, measure, dim, tabbed, size, holders: colours }: CellProps): JSX.Element {
  const [small, large] = [size === "small", size === "large"];
  const { gpu } = cell;
  const level = levelOf(gpu, measure);
  const holders = holdersOf(cell).join(", ");
  const value = valueText(cell, measure, holders, large);
  const height = small || level === undefined ? "" : level.toFixed(2);
  // A number that is absent has no line; a line of no length is a zero.
  const truth =
    small || measure !== "busy" || gpu.parent
      ? ""
      : [gpu.sm, gpu.tensor].map((one) => (one === undefined ? "" : one.toFixed(2))).join();
  const more = large && !gpu.parent ? moreText(gpu, measure) : "";
  const hue = measure === "holder" && holders ? (colours.get(holders) ?? 0) : undefined;
  const href = linkTo("gpu", gpu.uuid);
  const words = spoken.get().code;
  // The same element as before is not compared again: most of a thousand cells do not change in a second.
  return useMemo(() => {
    const attributes = {
      class: dim ? "cell dim" : "cell",
      href,
      tabIndex: tabbed ? 0 : -1,
      "data-s": gpu.state,
      "data-uuid": gpu.uuid,
      ...(hue === undefined ? {} : { "data-holder": String(hue) }),
      style: styleOf(gpu),
    };
    const place = `${gpu.node} ${stateName(gpu.state)} GPU `;
    const glyph = GLYPHS[gpu.state] && (
      <span class="glyph" aria-hidden="true">
        {GLYPHS[gpu.state]}
      </span>
    );
    const percent = `${Number(height) * 100}%`;
    // Instances lie in rows, one under the other, and fill from the left. An absent level has no fill at all.
    const fill = height && (
      <span class="level" style={{ backgroundSize: gpu.parent ? `${percent} 100%` : `100% ${percent}` }} />
    );
    // Little in it, and no level: a thousand of those are painted on one canvas behind the cells.
    if (small)
      return (
        <a {...attributes} aria-label={`${place}${gpu.gpu} ${value} ${holders}`}>
          {glyph}
        </a>
      );
    return (
      <a {...attributes}>
        {fill}
        <span class="visually-hidden">{place}</span>
        <span class="top">
          <span class="index">{gpu.profile ?? gpu.gpu}</span>
          <span>
            {glyph}
            <span class="value">{measure === "holder" ? formatValue(busyOf(gpu), "ratio") : value}</span>
          </span>
        </span>
        <span class="who">
          <Name
            text={
              holders ||
              (gpu.state === "idle"
                ? t("fleet.free")
                : gpu.state === "gone" || gpu.state === "stale"
                  ? stateName(gpu.state)
                  : "")
            }
          />
        </span>
        {more && (
          <span class="more" aria-hidden="true">
            {more}
          </span>
        )}
        {truth.length > 1 && (
          <span class="truth" aria-hidden="true">
            {truth
              .split(",")
              .map((width, line) =>
                width ? (
                  <i key={line} style={{ backgroundSize: `${Number(width) * 100}% 100%` }} />
                ) : (
                  <i key={line} class="absent" />
                ),
              )}
          </span>
        )}
      </a>
    );
  }, [
    gpu.state,
    gpu.uuid,
    gpu.gpu,
    gpu.node,
    value,
    height,
    holders,
    dim,
    href,
    hue,
    truth,
    more,
    measure,
    words,
    small,
  ]);
}

/** Only what a cell needs: a property that is set on a cell is worked out again for all that is in it. */
function styleOf(gpu: LiveGpu): Record<string, number> {
  const slices = Number(/^(\d+)g/.exec(gpu.profile ?? "")?.[1] ?? 0);
  return slices ? { "--slices": slices } : {};
}

/** Where there is room, what the chosen measure leaves out. */
function moreText(gpu: LiveGpu, measure: Measure): string {
  if (gpu.state === "lost" || gpu.state === "gone") return "";
  const total = formatValue(gpu.memory_total, "bytes");
  return [
    measure === "memory" && total !== ABSENT ? t("fleet.of_memory", { total }) : "",
    measure === "memory" ? formatValue(levelOf(gpu, "memory"), "ratio") : "",
    measure === "power" || measure === "memory" ? "" : formatValue(gpu.power, "watts"),
    measure === "temperature" || measure === "memory" ? "" : formatValue(gpu.temperature, "celsius"),
    measure === "power" || measure === "temperature" ? formatValue(busyOf(gpu), "ratio") : "",
  ]
    .filter((one) => one && one !== ABSENT)
    .join(" · ");
}

function valueText(cell: Cell, measure: Measure, holders: string, large: boolean): string {
  const { gpu } = cell;
  if (gpu.state === "lost" || gpu.state === "gone") return ABSENT;
  switch (measure) {
    case "busy":
      return formatValue(busyOf(gpu), "ratio");
    case "memory":
      // Where there is no room for bytes, at least how full it is.
      return large && !gpu.parent
        ? formatValue(gpu.memory_used, "bytes")
        : formatValue(levelOf(gpu, "memory"), "ratio");
    case "power":
      return formatValue(gpu.power, "watts");
    case "temperature":
      return formatValue(gpu.temperature, "celsius");
    case "holder":
      return holders || t("fleet.free");
  }
}
