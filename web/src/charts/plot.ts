// uPlot with the page's habits: one look, one cursor over all charts, drag to zoom, gaps as gaps. In: columns on one
// time axis. Out: a chart that can be fed and torn down. Strips of states are the same chart with painted rows.
import uPlot from "uplot";
import type { Column } from "./align";
import { isolatedPlaces, runsOf, valueRange } from "./align";
import { canvasFont, LIMIT_COLOURS, readColours, seriesColour, type Colours } from "./colours";

export interface Line {
  name: string;
  column: Column;
  limit?: keyof typeof LIMIT_COLOURS;
}
export interface Mark {
  at: number;
  name: string;
}
export interface StripRow {
  name: string;
  column: Column;
  /** How a value is drawn, or nothing for "not drawn". */
  look(value: number): { colour: "act" | "severe" | "neutral" | "soft"; text?: string; share?: number } | undefined;
  /** The name stands left of the row rather than above it. */
  beside?: boolean;
}
export interface PlotOptions {
  times: number[];
  width: number;
  marks: readonly Mark[];
  formatTime(seconds: number, spacing: number): string;
  onZoom(start: number, end: number): void;
  onWiden(): void;
  onCursor(place: number | undefined): void;
}
export interface LineOptions extends PlotOptions {
  lines: readonly Line[];
  height: number;
  min?: number;
  max?: number;
  formatValue(value: number): string;
  /** Ticks at powers of two rather than of ten. */
  binary?: boolean;
}
export interface StripOptions extends PlotOptions {
  rows: readonly StripRow[];
}

const POWERS_OF_TWO = Array.from({ length: 56 }, (_, power) => 2 ** power);
const AXIS_WIDTH = 62;
const AXIS_HEIGHT = 24;
const ROW_HEIGHT = 28;
const SYNC_KEY = "time";

/** A chart on screen. New numbers are given to it as long as its shape stays: a cursor over it does not flicker. */
export interface Chart<T> {
  update(options: T): void;
  destroy(): void;
}

export function drawLines(host: HTMLElement, first: LineOptions): Chart<LineOptions> {
  const colours = readColours();
  const held = { options: first };
  const chart = baseOptions(held, colours, first.height);
  const least = first.min ?? null;
  const most = first.max ?? null;
  chart.scales = {
    x: { time: true },
    y: {
      range: (_, low, high) => valueRange(low, high, least, most),
    },
  };
  chart.axes = [
    timeAxis(held, colours),
    {
      ...axisLook(colours),
      size: AXIS_WIDTH,
      space: 30,
      ...(first.binary ? { incrs: POWERS_OF_TWO } : {}),
      values: (_, splits) => splits.map((value) => held.options.formatValue(value)),
    },
  ];
  chart.series = [{}, ...first.lines.map((_, place) => lineSeries(held, place, colours))];
  return keep(held, new uPlot(chart, toData(first.times, first.lines), host), (options) => options.lines);
}

export function drawStrip(host: HTMLElement, first: StripOptions): Chart<StripOptions> {
  const colours = readColours();
  const held = { options: first };
  const chart = baseOptions(held, colours, first.rows.length * ROW_HEIGHT + AXIS_HEIGHT + 6);
  chart.scales = { x: { time: true }, y: { range: () => [0, 1] } };
  chart.axes = [
    timeAxis(held, colours),
    { show: true, size: besideWidth(first.rows), values: () => [], splits: () => [], ticks: { show: false } },
  ];
  chart.series = [{}, ...first.rows.map(() => ({ paths: () => null, points: { show: false } }))];
  chart.hooks = {
    ...chart.hooks,
    drawAxes: [(plot) => paintRows(plot, held.options.rows, held.options.times, colours)],
  };
  return keep(held, new uPlot(chart, toData(first.times, first.rows), host), (options) => options.rows);
}

/** Room for the longest name beside a row: `GPU 0` fits everywhere, a node's name needs more. */
const besideWidth = (rows: readonly StripRow[]): number =>
  Math.min(Math.max(AXIS_WIDTH, ...rows.map((row) => (row.beside ? row.name.length * 6.5 + 8 : 0))), 160);

interface Held<T> {
  options: T;
}

function keep<T extends PlotOptions>(
  held: Held<T>,
  plot: uPlot,
  columns: (options: T) => readonly { column: Column }[],
): Chart<T> {
  return {
    update(options) {
      held.options = options;
      plot.setData(toData(options.times, columns(options)));
    },
    destroy: () => plot.destroy(),
  };
}

const toData = (times: number[], columns: readonly { column: Column }[]): uPlot.AlignedData =>
  [times, ...columns.map((one) => one.column)] as uPlot.AlignedData;

function baseOptions(held: Held<PlotOptions>, colours: Colours, height: number): uPlot.Options {
  return {
    width: held.options.width,
    height,
    padding: [6, 22, 0, 0],
    legend: { show: false },
    cursor: {
      // The cursor is shared; pressing a button is not, or every chart would zoom.
      sync: { key: SYNC_KEY, setSeries: false, filters: { pub: (type) => type !== "mousedown" && type !== "mouseup" } },
      drag: { x: true, y: false, setScale: false },
      bind: {
        dblclick: () => () => {
          held.options.onWiden();
          return null;
        },
      },
      points: { size: 5 },
      y: false,
    },
    series: [{}],
    hooks: {
      setCursor: [(plot) => held.options.onCursor(plot.cursor.idx ?? undefined)],
      setSelect: [
        (plot) => {
          const { left, width } = plot.select;
          if (width > 4) held.options.onZoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      draw: [(plot) => paintMarks(plot, held.options.marks, colours)],
    },
  };
}

const axisLook = (colours: Colours): uPlot.Axis => ({
  stroke: colours["ink-soft"],
  font: canvasFont(11),
  grid: { stroke: colours.line, width: 1 },
  ticks: { show: false },
});

function timeAxis(held: Held<PlotOptions>, colours: Colours): uPlot.Axis {
  return {
    ...axisLook(colours),
    size: AXIS_HEIGHT,
    space: 70,
    gap: 4,
    values: (_, splits) => splits.map((at) => held.options.formatTime(at, (splits[1] ?? at) - (splits[0] ?? at))),
  };
}

function lineSeries(held: Held<LineOptions>, place: number, colours: Colours): uPlot.Series {
  const line = held.options.lines[place];
  const stroke = line?.limit ? colours[LIMIT_COLOURS[line.limit]] : seriesColour(colours, place);
  return {
    label: line?.name ?? "",
    stroke,
    width: line?.limit ? 1 : 1.5,
    ...(line?.limit ? { dash: [5, 4] } : {}),
    spanGaps: false,
    points: {
      show: true,
      size: 4,
      fill: stroke,
      filter: () => isolatedPlaces(held.options.lines[place]?.column ?? []),
    },
  };
}

function paintMarks(plot: uPlot, marks: readonly Mark[], colours: Colours): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colours["crit-line"];
  ctx.fillStyle = colours["crit-line"];
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    const size = 4 * devicePixelRatio;
    ctx.moveTo(x - size, bbox.top);
    ctx.lineTo(x + size, bbox.top);
    ctx.lineTo(x, bbox.top + size * 1.5);
    ctx.fill();
  }
  ctx.restore();
}

function paintRows(plot: uPlot, rows: readonly StripRow[], times: readonly number[], colours: Colours): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const step = (times[1] ?? 1) - (times[0] ?? 0);
  const fills = {
    act: colours["warn-line"],
    severe: colours["crit-line"],
    neutral: colours.fill,
    soft: colours["line-strong"],
  };
  ctx.save();
  ctx.font = canvasFont(11 * ratio);
  ctx.textBaseline = "alphabetic";
  ctx.textAlign = "left";
  rows.forEach((row, place) => {
    const top = bbox.top + place * ROW_HEIGHT * ratio;
    const [bar, depth] = row.beside ? [top + 2 * ratio, 24 * ratio] : [top + 15 * ratio, 9 * ratio];
    ctx.fillStyle = colours["ink-soft"];
    if (row.beside) ctx.fillText(row.name, 4 * ratio, top + 20 * ratio, bbox.left - 8 * ratio);
    else {
      // A rim of paper around the letters, or the lines of the grid run through them.
      ctx.strokeStyle = colours.raised;
      ctx.lineWidth = 4 * ratio;
      ctx.lineJoin = "round";
      const at = [bbox.left + 4 * ratio, top + 11 * ratio, bbox.width - 8 * ratio] as const;
      ctx.strokeText(row.name, ...at);
      ctx.fillText(row.name, ...at);
    }
    if (row.beside) {
      ctx.fillStyle = colours.line;
      ctx.fillRect(bbox.left, bar + depth, bbox.width, ratio);
    }
    for (const run of runsOf(row.column)) {
      const look = row.look(run.value);
      if (!look) continue;
      // Whole pixels, or hairlines of paper show between neighbours.
      const left = Math.floor(Math.max(plot.valToPos((times[run.from] ?? 0) - step / 2, "x", true), bbox.left));
      const right = Math.ceil(
        Math.min(plot.valToPos((times[run.to] ?? 0) + step / 2, "x", true), bbox.left + bbox.width),
      );
      const width = Math.max(right - left, row.beside ? 0 : 2 * ratio);
      const height = depth * (look.share ?? 1);
      ctx.fillStyle = fills[look.colour];
      ctx.fillRect(left, bar + depth - height, width, height);
      if (look.text && width > 26 * ratio) {
        ctx.fillStyle = colours.ink;
        ctx.fillText(look.text, left + 3 * ratio, bar + 8.5 * ratio);
      }
    }
  });
  ctx.restore();
}
