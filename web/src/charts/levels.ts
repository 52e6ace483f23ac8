// The levels of a large fleet, painted on one canvas behind its cells. The cells stay links that can be reached and
// read; only what changes every second for a thousand of them is not DOM, which a browser would restyle each time.
import { levelOf, leaves, holdersOf, type Measure, type NodeCells } from "../fleet";
import { readColours, type Colours } from "./colours";

interface Place {
  uuid: string;
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface LevelPainter {
  canvas: HTMLCanvasElement;
  paint(nodes: readonly NodeCells[], measure: Measure, matching: ReadonlySet<string> | undefined): void;
}

const DIM = 0.22;
const SILENT = new Set(["lost", "stale", "idle"]);

export function createPainter(map: HTMLElement, canvas: HTMLCanvasElement): LevelPainter {
  let places: Place[] = [];
  let laidOutAs = "";
  return {
    canvas,
    paint(nodes, measure, matching) {
      const ratio = devicePixelRatio;
      const layout = `${map.clientWidth}x${map.clientHeight}@${ratio}/${nodes.length}/${nodes[0]?.name}/${nodes.at(-1)?.name}`;
      // Where a cell is changes with the window and the filter, not with every second.
      if (layout !== laidOutAs) {
        laidOutAs = layout;
        places = measurePlaces(map);
        canvas.width = map.clientWidth * ratio;
        canvas.height = map.clientHeight * ratio;
      }
      const context = canvas.getContext("2d");
      if (!context) return;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, map.clientWidth, map.clientHeight);
      paintAll(context, places, toFills(nodes, measure, matching, readColours()));
    },
  };
}

function measurePlaces(map: HTMLElement): Place[] {
  const origin = map.getBoundingClientRect();
  return [...map.querySelectorAll<HTMLElement>("a.cell")].map((cell) => {
    const box = cell.getBoundingClientRect();
    return {
      uuid: cell.dataset["uuid"] ?? "",
      left: box.left - origin.left,
      top: box.top - origin.top,
      width: box.width,
      height: box.height,
    };
  });
}

interface Fill {
  level: number;
  colour: string;
  alpha: number;
}

function toFills(
  nodes: readonly NodeCells[],
  measure: Measure,
  matching: ReadonlySet<string> | undefined,
  colours: Colours,
): Map<string, Fill> {
  const fills = new Map<string, Fill>();
  for (const node of nodes) {
    for (const cell of node.cells) {
      const alpha = matching && !matching.has(cell.gpu.uuid) ? DIM : 1;
      for (const leaf of leaves([cell])) {
        const holder = measure === "holder" ? holdersOf(leaf).join(", ") : "";
        const level = measure === "holder" ? (holder ? 1 : 0) : (levelOf(leaf.gpu, measure) ?? 0);
        if (!level || (SILENT.has(leaf.gpu.state) && measure === "busy") || leaf.gpu.state === "lost") continue;
        fills.set(leaf.gpu.uuid, { level, alpha, colour: holder ? holderColour(holder) : colours.fill });
      }
    }
  }
  return fills;
}

function paintAll(context: CanvasRenderingContext2D, places: readonly Place[], fills: ReadonlyMap<string, Fill>): void {
  for (const { uuid, left, top, width, height } of places) {
    const fill = fills.get(uuid);
    if (!fill) continue;
    context.globalAlpha = fill.alpha;
    context.fillStyle = fill.colour;
    const high = Math.round((height - 2) * fill.level);
    context.fillRect(left + 1, top + height - 1 - high, width - 2, high);
  }
}

/** A steady hue for a name, from green to violet: red and amber are for trouble. */
export function hueOf(name: string): number {
  let hash = 7;
  for (let at = 0; at < name.length; at += 1) hash = (hash * 31 + name.charCodeAt(at)) >>> 0;
  return 130 + (hash % 200);
}

const holderColour = (name: string): string => `oklch(0.65 0.075 ${hueOf(name)} / 55%)`;
