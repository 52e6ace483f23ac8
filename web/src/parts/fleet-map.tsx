// The map of the fleet: a row for each node, a cell for each GPU, as large as their number allows. Holds the filters'
// effect, the card beside the pointer, and the arrow keys.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { createPainter, type LevelPainter } from "../charts/levels";
import { matches, toWords, type Holders, type Measure, type NodeCells } from "../fleet";
import { t } from "../i18n";
import type { Finding } from "../live";
import { changeQuery } from "../router";
import { Card } from "./card";
import { HolderLegend, MapKey } from "./map-key";
import { NodeRow } from "./node-row";
import { TinyMap } from "./tiny-map";
import { useWidth } from "./width";

/** Above this no cell is an element of its own. */
const SMALL_UP_TO = 2000;
const LARGE_UP_TO = 64;
const MIDDLE_UP_TO = 256;

export interface MapProps {
  nodes: NodeCells[];
  measure: Measure;
  search: string;
  states: string[];
  gpus: number;
  holders: Holders | undefined;
  findings: readonly Finding[];
}

export function FleetMap({ nodes, measure, search, states, gpus, holders, findings }: MapProps): JSX.Element {
  const words = toWords(search);
  const filtered = words.length > 0 || states.length > 0;
  const matching = new Set<string>();
  if (filtered) {
    for (const node of nodes)
      for (const cell of node.cells) if (matches(cell, words, states)) matching.add(cell.gpu.uuid);
  }
  const shown = filtered ? nodes.filter((node) => node.cells.some((cell) => matching.has(cell.gpu.uuid))) : nodes;
  const size = gpus <= LARGE_UP_TO ? "large" : gpus <= MIDDLE_UP_TO ? "middle" : gpus <= SMALL_UP_TO ? "small" : "tiny";
  const columns = Math.min(
    Math.max(...nodes.map((node) => node.cells.length), 1),
    nodes.some((one) => one.isGroup) ? 8 : 64,
  );
  return (
    <div>
      {holders ? <HolderLegend holders={holders} /> : <MapKey size={size} measure={measure} />}
      {filtered && <Matching count={matching.size} gpus={gpus} />}
      {size === "tiny" ? (
        <TinyMap
          nodes={shown}
          measure={measure}
          matching={filtered ? matching : undefined}
          holders={holders?.colours ?? NO_HOLDERS}
        />
      ) : (
        <MapBody
          size={size}
          measure={measure}
          columns={columns}
          shown={shown}
          matching={filtered ? matching : undefined}
          holders={holders?.colours ?? NO_HOLDERS}
        >
          {shown.map((node) => (
            <NodeRow
              key={node.name}
              node={node}
              measure={measure}
              size={size}
              matching={filtered ? matching : undefined}
              holders={holders?.colours ?? NO_HOLDERS}
              findings={findings}
            />
          ))}
        </MapBody>
      )}
    </div>
  );
}

export function Matching({ count, gpus }: { count: number; gpus: number }): JSX.Element {
  return (
    <p class="soft" role="status">
      {count ? t("fleet.shown", { shown: count, count: gpus }) : t("fleet.none_match")}{" "}
      <button class="bare" onClick={() => changeQuery({ q: "", s: "" })}>
        {t("fleet.clear")}
      </button>
    </p>
  );
}

const NO_HOLDERS: ReadonlyMap<string, number> = new Map();

interface BodyProps {
  size: string;
  measure: Measure;
  columns: number;
  shown: NodeCells[];
  matching: ReadonlySet<string> | undefined;
  holders: ReadonlyMap<string, number>;
  children: JSX.Element[];
}

/** Holds the arrow keys and the card; a thousand links must not stand in the way of the Tab key. */
function MapBody({ size, measure, columns, shown, matching, holders, children }: BodyProps): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const painter = useRef<LevelPainter | undefined>(undefined);
  const { box: map, width } = useWidth();
  useLayoutEffect(() => {
    if (!map.current || !canvas.current) return;
    // A fleet that grew large gets its canvas later than its map.
    if (painter.current?.canvas !== canvas.current) painter.current = createPainter(map.current, canvas.current);
    painter.current.paint(shown, measure, matching, holders);
  }, [shown, measure, matching?.size, width, size, holders]);
  const [looked, setLooked] = useState<HTMLElement>();
  useEffect(() => {
    const cells = map.current?.querySelectorAll<HTMLElement>("a.cell") ?? [];
    if (![...cells].some((cell) => cell.tabIndex === 0)) cells[0]?.setAttribute("tabindex", "0");
  });
  const look = (event: Event): void => {
    setLooked((event.target as Element).closest<HTMLElement>("a.cell") ?? undefined);
  };
  return (
    <>
      <div
        class="map"
        ref={map}
        data-size={size}
        data-measure={measure}
        style={{ "--columns": columns }}
        role="group"
        aria-label={t("fleet.map")}
        onPointerOver={look}
        onPointerLeave={() => setLooked(undefined)}
        onFocusIn={look}
        onFocusOut={() => setLooked(undefined)}
        onKeyDown={(event) => moveFocus(event, map.current)}
      >
        {size === "small" && <canvas ref={canvas} aria-hidden="true" />}
        {children}
      </div>
      {looked?.isConnected && <Card anchor={looked} />}
    </>
  );
}

function moveFocus(event: KeyboardEvent, map: HTMLElement | null): void {
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const upDown = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!map || (sideways === undefined && upDown === undefined)) return;
  const cells = [...map.querySelectorAll<HTMLElement>("a.cell")];
  const at = cells.indexOf(document.activeElement as HTMLElement);
  const next = upDown === undefined ? cells[at + (sideways ?? 0)] : nearestInRow(cells, cells[at], upDown);
  if (!next) return;
  event.preventDefault();
  for (const cell of cells) if (cell.tabIndex === 0) cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

/** The cell straight above or below: the nearest row in that direction, and in it the nearest place. */
function nearestInRow(cells: HTMLElement[], from: HTMLElement | undefined, direction: number): HTMLElement | undefined {
  if (!from) return undefined;
  const here = from.getBoundingClientRect();
  let best: HTMLElement | undefined;
  let least = Infinity;
  for (const cell of cells) {
    const box = cell.getBoundingClientRect();
    const rows = (box.top - here.top) * direction;
    if (rows < 4) continue;
    const distance = rows * 1000 + Math.abs(box.left - here.left);
    if (distance < least) [best, least] = [cell, distance];
  }
  return best;
}
