// The fleet over time: one row for each GPU, darker where it was busier. A large fleet has three rows for each node, its
// busiest, its middle and its least busy GPU: an average would hide that only one of them works.
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { queryRange, type Series } from "../api";
import { columnOf, timesOf, type Column } from "../charts/align";
import { canvasFont, readColours } from "../charts/colours";
import type { NodeCells } from "../fleet";
import { formatMoment, formatValue, naturalOrder } from "../format";
import { spoken, t } from "../i18n";
import { serverNow } from "../live";
import { formatRoute } from "../router";
import { theme } from "../settings";
import { useStore } from "../store";
import { alignSpan, chooseStep, type Span } from "../time";
import { timeline, windowsFor } from "../timeline";
import { AskedState, useAsked } from "./asked";
import { Name } from "./marks";
import { TimePicker } from "./time-picker";
import { TimeTicks } from "./time-ticks";
import { useWidth } from "./width";

const MOST_GPU_ROWS = 256;
/** Room for names at the left; on a phone the plot needs it more. */
const namesWidth = (width: number): number => (width < 500 ? 90 : 150);
const EVERY_MS = 60_000;
const LEVELS = ["max", "median", "min"] as const;

interface HeatRow {
  name: string;
  /** A quiet second line: which GPU, or which of the three. */
  part: string;
  /** The same, as short as it can be. */
  index: string;
  view: string;
  target: string;
  column: Column;
}

interface HeatProps {
  nodes: readonly NodeCells[];
  /** By `instance`. */
  names: ReadonlyMap<string, string>;
  /** Only GPUs of `nodes`; otherwise those of the history that are gone, too. */
  isFiltered: boolean;
}

export function HeatMap({ nodes, names, isFiltered }: HeatProps): JSX.Element {
  const { span, interval } = useStore(timeline);
  const { box, width } = useWidth();
  const gpus = nodes.reduce((sum, node) => sum + node.cells.length, 0);
  const perNode = gpus > MOST_GPU_ROWS;
  const step = Math.max(chooseStep(span.end - span.start, Math.max(width - namesWidth(width), 200)), 15);
  const aligned = alignSpan(span, step);
  const asked = useAsked(
    (signal) => fetchHeat(aligned, step, windowsFor(step, interval ?? 60).window, perNode, signal),
    `${aligned.start}/${aligned.end}/${perNode}/${interval ?? ""}`,
    EVERY_MS,
  );
  const known = nodes.map((node) => `${node.name}${node.cells.length}`).join();
  const rows = useMemo(() => {
    const all = asked.data ? toRows(asked.data, { nodes, names, isFiltered }, aligned, step, perNode) : [];
    const shown = new Set(nodes.flatMap((node) => [node.name, ...node.cells.map((cell) => cell.gpu.uuid)]));
    return isFiltered ? all.filter((row) => shown.has(row.target)) : all;
  }, [asked.data, known, isFiltered]);
  return (
    <div>
      <TimePicker />
      <p class="key soft small">
        <span class="ramp" aria-hidden="true" /> {t(perNode ? "heat.key_nodes" : "heat.key_gpus")}
      </p>
      <div ref={box} class="heat">
        <AskedState asked={asked} what={t("fleet.over_time")} />
        {asked.data && !rows.length && <p class="soft">{t("panel.no_history")}</p>}
        {rows.length > 0 && width > 0 && (
          <Heat rows={rows} span={aligned} step={step} width={width} perNode={perNode} />
        )}
      </div>
    </div>
  );
}

async function fetchHeat(
  span: Span,
  step: number,
  window: string,
  perNode: boolean,
  signal: AbortSignal,
): Promise<Series[][]> {
  // The driver gives no utilisation of a GPU with MIG instances; its SM activity stands for it, as on the map.
  const mean = (series: string): string => `avg_over_time(${series}[${window}])`;
  const busy = `(${mean("gpuscope_gpu_utilization_ratio")} or ${mean('gpuscope_gpu_sm_active_ratio{uuid!~"MIG-.*"}')})`;
  const queries = perNode
    ? [`max by (instance) (${busy})`, `quantile by (instance) (0.5, ${busy})`, `min by (instance) (${busy})`]
    : [busy];
  return Promise.all(queries.map((query) => queryRange(query, span.start, span.end, step, signal)));
}

function toRows(
  answer: readonly Series[][],
  { nodes, names }: HeatProps,
  span: Span,
  step: number,
  perNode: boolean,
): HeatRow[] {
  const length = timesOf(span, step).length;
  const nameOf = ({ metric }: Series): string => names.get(metric["instance"] ?? "") ?? metric["instance"] ?? "";
  if (perNode) {
    const columns = answer.map(
      (series) => new Map(series.map((one) => [nameOf(one), columnOf(one, span, step, length)])),
    );
    return [...(columns[0]?.keys() ?? [])].sort(naturalOrder).flatMap((name) =>
      LEVELS.map((level, place) => ({
        name,
        part: t(`heat.${level}`),
        index: "",
        view: "node",
        target: name,
        column: columns[place]?.get(name) ?? [],
      })),
    );
  }
  const places = new Map(nodes.flatMap((node) => node.cells.map((cell) => [cell.gpu.uuid, node.name] as const)));
  return (answer[0] ?? [])
    .map((one) => ({
      name: places.get(one.metric["uuid"] ?? "") ?? nameOf(one),
      part: `GPU ${one.metric["gpu"] ?? ""}`,
      index: one.metric["gpu"] ?? "",
      view: "gpu",
      target: one.metric["uuid"] ?? "",
      column: columnOf(one, span, step, length),
    }))
    .sort((left, right) => naturalOrder(left.name, right.name) || naturalOrder(left.part, right.part));
}

function Heat({
  rows,
  span,
  step,
  width,
  perNode,
}: {
  rows: readonly HeatRow[];
  span: Span;
  step: number;
  width: number;
  perNode: boolean;
}): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const chosen = useStore(theme);
  const [looked, setLooked] = useState<{ row: HeatRow; at: number }>();
  const high = perNode ? 5 : rows.length > 96 ? 6 : 12;
  const names = namesWidth(width);
  const plot = width - names;
  useLayoutEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context) return;
    const ratio = devicePixelRatio;
    canvas.current.width = width * ratio;
    canvas.current.height = rows.length * high * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context, rows, { high, names, plot });
  }, [rows, width, chosen]);
  const find = (event: MouseEvent): { row: HeatRow; at: number } | undefined => {
    const place = (event.offsetX - names) / plot;
    const row = rows[Math.floor(event.offsetY / high)];
    return row && place >= 0
      ? { row, at: Math.min(Math.floor(place * row.column.length), row.column.length - 1) }
      : undefined;
  };
  const open = (event: MouseEvent): void => {
    const found = find(event);
    if (!found) return;
    const middle = span.start + found.at * step;
    const around = Math.max((span.end - span.start) / 8, 300);
    location.hash = formatRoute({
      view: found.row.view,
      name: found.row.target,
      query: { from: String(Math.round(middle - around)), to: String(Math.round(middle + around)) },
    });
  };
  const now = serverNow();
  return (
    <>
      <p class="soft small" role="status">
        {looked ? (
          <>
            <Name text={`${looked.row.name} ${looked.row.part}`} /> ·{" "}
            {formatMoment(span.start + looked.at * step, now, spoken.get().code)} ·{" "}
            {formatValue(looked.row.column[looked.at], "ratio")}
          </>
        ) : (
          t("heat.hint")
        )}
      </p>
      <canvas
        ref={canvas}
        style={{ width: `${width}px`, height: `${rows.length * high}px` }}
        role="img"
        aria-label={t("heat.label", { count: rows.length })}
        onMouseMove={(event) => setLooked(find(event))}
        onMouseLeave={() => setLooked(undefined)}
        onClick={open}
      />
      <div style={{ paddingLeft: `${names}px` }}>
        <TimeTicks span={span} most={plot < 400 ? 4 : 8} />
      </div>
    </>
  );
}

interface HeatSize {
  /** Of a row. */
  high: number;
  names: number;
  plot: number;
}

function paint(context: CanvasRenderingContext2D, rows: readonly HeatRow[], { high, names, plot }: HeatSize): void {
  const colours = readColours();
  context.font = canvasFont(11);
  context.textBaseline = "top";
  let named = "";
  rows.forEach((row, place) => {
    const top = place * high;
    if (row.name !== named) {
      named = row.name;
      context.globalAlpha = 1;
      context.fillStyle = colours["ink-soft"];
      context.fillText(row.name, 2, top + 2, names - 44);
      context.fillStyle = colours.line;
      context.fillRect(0, top, names + plot, 1);
    }
    if (high >= 12) {
      context.globalAlpha = 1;
      context.fillStyle = colours["ink-soft"];
      context.textAlign = "right";
      context.fillText(row.index, names - 6, top + 2, 36);
      context.textAlign = "left";
    }
    const width = plot / Math.max(row.column.length, 1);
    context.fillStyle = colours.ink;
    row.column.forEach((value, at) => {
      if (value === null) return;
      // A zero is a faint mark, a gap is none.
      context.globalAlpha = 0.06 + 0.84 * Math.min(Math.max(value, 0), 1);
      context.fillRect(names + at * width, top + 1, Math.ceil(width), high - 1);
    });
  });
  context.globalAlpha = 1;
}
