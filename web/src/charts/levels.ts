// The levels of a large fleet, painted on one canvas behind its cells. The cells stay links that can be reached and
// read; only what changes every second for a thousand of them is not DOM, which a browser would restyle each time.
import { levelOf, leaves, holdersOf, type Measure, type NodeCells } from "../fleet";
import { readColours, seriesColour, type Colours } from "./colours";

interface Place {
  uuid: string;
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface LevelPainter {
  canvas: HTMLCanvasElement;
  paint(
    nodes: readonly NodeCells[],
    measure: Measure,
    matching: ReadonlySet<string> | undefined,
    holders: ReadonlyMap<string, number>,
  ): void;
}

const DIM = 0.22;
const HELD_ALPHA = 0.6;
const UNPAINTED = new Set(["lost", "gone"]);
const SILENT = new Set(["lost", "stale", "allocated", "idle"]);

export function createPainter(map: HTMLElement, canvas: HTMLCanvasElement): LevelPainter {
  let places: Place[] = [];
  let laidOutAs = "";
  return {
    canvas,
    paint(nodes, measure, matching, holders) {
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
      paintAll(context, places, toFills(nodes, measure, matching, holders, readColours()));
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
  holders: ReadonlyMap<string, number>,
  colours: Colours,
): Map<string, Fill> {
  const fills = new Map<string, Fill>();
  for (const node of nodes) {
    for (const cell of node.cells) {
      const alpha = matching && !matching.has(cell.gpu.uuid) ? DIM : 1;
      for (const leaf of leaves([cell])) {
        const holder = measure === "holder" ? holdersOf(leaf).join(", ") : "";
        const level = measure === "holder" ? (holder ? 1 : 0) : (levelOf(leaf.gpu, measure) ?? 0);
        if (!level || (SILENT.has(leaf.gpu.state) && measure === "busy") || UNPAINTED.has(leaf.gpu.state)) continue;
        const place = holders.get(holder);
        const colour = !holder ? colours.fill : place ? seriesColour(colours, place - 1) : colours["line-strong"];
        fills.set(leaf.gpu.uuid, { level, alpha: holder ? alpha * HELD_ALPHA : alpha, colour });
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
