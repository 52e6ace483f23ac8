// Thousands of GPUs on one screen: one canvas, eight cells beside each other for a node, painted anew each second in a few
// milliseconds. No cell is an element; arrow keys move a mark, and what it stands on is told to screen readers.
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { readColours, seriesColour, type Colours } from "../charts/colours";
import { busyOf, holdersOf, leaves, levelOf, type Cell, type Measure, type NodeCells } from "../fleet";
import { formatValue } from "../format";
import { t } from "../i18n";
import type { GpuState } from "../live";
import { linkTo } from "../router";
import { theme } from "../settings";
import { useStore } from "../store";
import { Name, stateName } from "./marks";
import { useWidth } from "./width";

const CELL_WIDTH = 8;
const CELL_HEIGHT = 12;
const NODE_GAP = 6;
const ROW_GAP = 3;

interface Placed {
  cell: Cell;
  x: number;
  y: number;
}

interface TinyProps {
  nodes: readonly NodeCells[];
  measure: Measure;
  matching: ReadonlySet<string> | undefined;
  holders: ReadonlyMap<string, number>;
}

export function TinyMap({ nodes, measure, matching, holders }: TinyProps): JSX.Element {
  const { box, width } = useWidth();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [current, setCurrent] = useState<number>();
  const chosen = useStore(theme);
  const { placed, height } = useMemo(() => placeCells(nodes, Math.max(width, 200)), [nodes, width]);
  useLayoutEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context || !width) return;
    const ratio = devicePixelRatio;
    if (canvas.current.width !== width * ratio || canvas.current.height !== height * ratio) {
      canvas.current.width = width * ratio;
      canvas.current.height = height * ratio;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    paint(context, placed, measure, matching, holders, readColours());
    const marked = placed[current ?? -1];
    if (marked) mark(context, marked, readColours());
  }, [placed, measure, matching, holders, current, chosen]);
  const find = (event: MouseEvent): number | undefined => {
    const at = placed.findIndex(
      (one) =>
        event.offsetX >= one.x &&
        event.offsetX < one.x + CELL_WIDTH &&
        event.offsetY >= one.y &&
        event.offsetY < one.y + CELL_HEIGHT,
    );
    return at < 0 ? undefined : at;
  };
  const open = (at: number | undefined): void => {
    const one = placed[at ?? -1];
    if (one) location.hash = linkTo("gpu", one.cell.gpu.uuid);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const perRow = placed.filter((one) => one.y === placed[0]?.y).length;
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow }[event.key];
    if (event.key === "Enter") open(current);
    else if (move !== undefined)
      setCurrent(Math.min(Math.max((current ?? -Math.sign(move)) + move, 0), placed.length - 1));
    else return;
    event.preventDefault();
  };
  const shown = placed[current ?? -1];
  return (
    <div>
      <p class="soft small tiny-told">{shown ? <Told cell={shown.cell} /> : t("tiny.hint")}</p>
      <div
        ref={box}
        class="tiny"
        role="listbox"
        tabIndex={0}
        aria-label={t("fleet.map")}
        {...(shown ? { "aria-activedescendant": "tiny-current" } : {})}
        onKeyDown={onKeyDown}
      >
        <canvas
          ref={canvas}
          aria-hidden="true"
          style={{ width: `${width}px`, height: `${height}px` }}
          onMouseMove={(event) => setCurrent(find(event))}
          onClick={(event) => open(find(event))}
        />
        <div id="tiny-current" class="visually-hidden" role="option" aria-selected={shown !== undefined}>
          {shown ? <Told cell={shown.cell} /> : t("tiny.hint")}
        </div>
      </div>
    </div>
  );
}

function Told({ cell }: { cell: Cell }): JSX.Element {
  const { gpu } = cell;
  const holders = holdersOf(cell).join(", ");
  return (
    <Name
      text={[
        `${gpu.node} GPU ${gpu.gpu}`,
        stateName(gpu.state),
        formatValue(busyOf(gpu), "ratio"),
        formatValue(gpu.memory_used, "bytes"),
        formatValue(gpu.power, "watts"),
        holders,
      ]
        .filter(Boolean)
        .join(" · ")}
    />
  );
}

/** Nodes beside each other as many as there is room for; a node is never cut. */
function placeCells(nodes: readonly NodeCells[], width: number): { placed: Placed[]; height: number } {
  const placed: Placed[] = [];
  let [x, y] = [0, 0];
  for (const node of nodes) {
    const cells = leaves(node.cells);
    const wide = cells.length * CELL_WIDTH;
    if (x && x + wide > width) [x, y] = [0, y + CELL_HEIGHT + ROW_GAP];
    for (const cell of cells) {
      if (x + CELL_WIDTH > width) [x, y] = [0, y + CELL_HEIGHT + ROW_GAP];
      placed.push({ cell, x, y });
      x += CELL_WIDTH;
    }
    x += NODE_GAP;
  }
  return { placed, height: y + CELL_HEIGHT + 2 };
}

const SEVERE: ReadonlySet<GpuState> = new Set(["lost", "sick"]);
const ACT: ReadonlySet<GpuState> = new Set(["held", "throttled"]);

function paint(
  context: CanvasRenderingContext2D,
  placed: readonly Placed[],
  measure: Measure,
  matching: ReadonlySet<string> | undefined,
  holders: ReadonlyMap<string, number>,
  colours: Colours,
): void {
  for (const { cell, x, y } of placed) {
    const { gpu } = cell;
    context.globalAlpha = matching && !matching.has(gpu.uuid) && !matching.has(gpu.parent ?? "") ? 0.2 : 1;
    context.fillStyle = colours.line;
    context.fillRect(x, y, CELL_WIDTH - 1, CELL_HEIGHT);
    const holder = measure === "holder" ? holdersOf(cell).join(", ") : "";
    const level =
      gpu.state === "lost" || gpu.state === "gone"
        ? 0
        : measure === "holder"
          ? holder
            ? 1
            : 0
          : (levelOf(gpu, measure) ?? 0);
    const high = Math.round((CELL_HEIGHT - 1) * level);
    const hue = holders.get(holder);
    context.fillStyle = !holder ? colours.fill : hue ? seriesColour(colours, hue - 1) : colours["line-strong"];
    context.fillRect(x, y + CELL_HEIGHT - high, CELL_WIDTH - 1, high);
    drawState(context, gpu.state, x, y, colours);
  }
  context.globalAlpha = 1;
}

/** What somebody must act on has a colour and a shape of its own: a cross, a frame, a corner, a bar. */
function drawState(context: CanvasRenderingContext2D, state: GpuState, x: number, y: number, colours: Colours): void {
  if (!SEVERE.has(state) && !ACT.has(state) && state !== "gone" && state !== "stale") return;
  context.strokeStyle = context.fillStyle = SEVERE.has(state)
    ? colours["crit-line"]
    : ACT.has(state)
      ? colours["warn-line"]
      : colours["ink-soft"];
  const [right, bottom] = [x + CELL_WIDTH - 1, y + CELL_HEIGHT];
  context.beginPath();
  if (state === "lost") {
    context.moveTo(x, y);
    context.lineTo(right, bottom);
    context.moveTo(right, y);
    context.lineTo(x, bottom);
  } else if (state === "sick") context.rect(x + 0.5, y + 0.5, CELL_WIDTH - 2, CELL_HEIGHT - 1);
  else if (state === "held") {
    context.moveTo(x, bottom);
    context.lineTo(right, y);
  } else if (state === "throttled") context.rect(x, y, CELL_WIDTH - 1, 2);
  else {
    context.moveTo(x, y + CELL_HEIGHT / 2);
    context.lineTo(right, y + CELL_HEIGHT / 2);
  }
  context.lineWidth = 1.5;
  context.stroke();
}

function mark(context: CanvasRenderingContext2D, { x, y }: Placed, colours: Colours): void {
  context.strokeStyle = colours.accent;
  context.lineWidth = 2;
  context.strokeRect(x - 1, y - 1, CELL_WIDTH + 1, CELL_HEIGHT + 2);
}
