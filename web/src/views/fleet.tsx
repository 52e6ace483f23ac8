// Every GPU at a glance. One cell is one link; what changed is worked out per cell, so that 1,000 of them are drawn
// anew within a few milliseconds.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { createPainter, type LevelPainter } from "../charts/levels";
import {
  arrange,
  colourHolders,
  MEASURES,
  matches,
  spreadOf,
  STATES,
  totalsOf,
  toWords,
  type Holders,
  type Measure,
  type NodeCells,
  type Totals,
} from "../fleet";
import { formatValue } from "../format";
import { t, useLanguage } from "../i18n";
import type { Finding, LivePicture } from "../live";
import { Attention } from "../parts/attention";
import { Card } from "../parts/card";
import { lazy } from "../parts/lazy";
import { GLYPHS, Distribution, spreadText, stateName, Swatch } from "../parts/marks";
import { HolderLegend, MapKey } from "../parts/map-key";
import { NoGpus } from "../parts/no-gpus";
import { NodeRow } from "../parts/node-row";
import { changeQuery, route } from "../router";
import { useStore } from "../store";

const LARGE_UP_TO = 64;
const MIDDLE_UP_TO = 256;
const FEW_GPUS = 16;

const FewGpus = lazy(async () => (await import("../parts/few-gpus")).FewGpus);

export function Fleet({ picture }: { picture: LivePicture }): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const nodes = useMemo(() => arrange(picture), [picture]);
  const totals = useMemo(() => totalsOf(nodes), [nodes]);
  const { findings } = picture;
  const measure = MEASURES.find((one) => one === query["m"]) ?? "busy";
  const states = (query["s"] ?? "").split(",").filter(Boolean);
  const colours = useRef<ReadonlyMap<string, number>>(new Map());
  const holders = useMemo(() => {
    const found = measure === "holder" ? colourHolders(nodes, colours.current) : undefined;
    if (found) colours.current = found.colours;
    return found;
  }, [nodes, measure]);
  if (!totals.gpus) return <NoGpus nodes={nodes} findings={<Attention findings={findings} gpus={0} />} />;
  return (
    <div class="data">
      <h1 class="visually-hidden">{t("fleet.title")}</h1>
      <TotalsStrip totals={totals} nodes={nodes} />
      <Controls measure={measure} search={query["q"] ?? ""} states={states} totals={totals} />
      <div class="fleet aside">
        <Attention findings={findings} gpus={totals.units - totals.states.lost - totals.states.gone} />
        <div>
          <FleetMap
            nodes={nodes}
            measure={measure}
            search={query["q"] ?? ""}
            states={states}
            gpus={totals.gpus}
            holders={holders}
            findings={findings}
          />
          {nodes.length === 1 && totals.gpus <= FEW_GPUS && <FewGpus picture={picture} />}
        </div>
      </div>
    </div>
  );
}

function TotalsStrip({ totals, nodes }: { totals: Totals; nodes: NodeCells[] }): JSX.Element {
  const spread = spreadOf(nodes.flatMap((node) => node.cells));
  const { held, lost, gone } = totals.states;
  return (
    <dl class="totals">
      <Total
        name={t("fleet.gpus")}
        value={String(totals.gpus)}
        id="gpus"
        note={[
          t("fleet.nodes", { count: nodes.length }),
          totals.instances ? t("fleet.instances", { count: totals.instances }) : "",
        ]
          .filter(Boolean)
          .join(", ")}
      />
      <Total
        name={t("fleet.in_use")}
        value={String(totals.inUse)}
        id="in-use"
        note={totals.instances ? t("fleet.of_units", { count: totals.units }) : ""}
      />
      <Total name={t("fleet.held_idle")} value={String(held)} id="held-idle" act={held > 0} />
      <Total name={t("fleet.lost")} value={String(lost)} id="lost" act={lost > 0} severe />
      {gone > 0 && <Total name={t("fleet.gone")} value={String(gone)} id="gone" act severe />}
      <Total
        name={t("fleet.power")}
        value={formatValue(totals.watts, "watts")}
        id="power"
        note={totals.wattsOf < totals.gpus ? t("fleet.power_of", { count: totals.wattsOf }) : ""}
      />
      {spread && (
        <div class="distribution">
          <dt>
            {t("fleet.spread")}: {spreadText(spread)}
          </dt>
          <dd>
            <Distribution spread={spread} />
          </dd>
        </div>
      )}
    </dl>
  );
}

interface TotalProps {
  name: string;
  value: string;
  id: string;
  note?: string;
  act?: boolean;
  severe?: boolean;
}

function Total({ name, value, id, note, act, severe }: TotalProps): JSX.Element {
  return (
    <div class={act ? (severe ? "act severe" : "act") : ""}>
      <dt>{name}</dt>
      <dd data-total={id}>
        {value} {note && <small>{note}</small>}
      </dd>
    </div>
  );
}

interface ControlProps {
  measure: Measure;
  search: string;
  states: string[];
  totals: Totals;
}

function Controls({ measure, search, states, totals }: ControlProps): JSX.Element {
  const toggle = (state: string): void => {
    const next = states.includes(state) ? states.filter((one) => one !== state) : [...states, state];
    changeQuery({ s: next.join(",") });
  };
  return (
    <div class="controls">
      <div class="segments" role="group" aria-label={t("measure.label")}>
        {MEASURES.map((one) => (
          <button
            key={one}
            aria-pressed={one === measure}
            onClick={() => changeQuery({ m: one === "busy" ? "" : one })}
          >
            {t(`measure.${one}`)}
          </button>
        ))}
      </div>
      <input
        type="search"
        id="search"
        placeholder={t("fleet.search")}
        aria-label={t("fleet.search")}
        value={search}
        onInput={(event) => changeQuery({ q: event.currentTarget.value })}
      />
      <div class="legend" role="group" aria-label={t("fleet.states")}>
        {STATES.filter((state) => totals.states[state] || states.includes(state)).map((state) => (
          <button key={state} aria-pressed={states.includes(state)} onClick={() => toggle(state)}>
            <Swatch state={state} />
            {GLYPHS[state] && <b aria-hidden="true">{GLYPHS[state]}</b>}
            {stateName(state)} <span class="soft">{totals.states[state]}</span>
          </button>
        ))}
      </div>
    </div>
  );
}

interface MapProps {
  nodes: NodeCells[];
  measure: Measure;
  search: string;
  states: string[];
  gpus: number;
  holders: Holders | undefined;
  findings: readonly Finding[];
}

function FleetMap({ nodes, measure, search, states, gpus, holders, findings }: MapProps): JSX.Element {
  const words = toWords(search);
  const filtered = words.length > 0 || states.length > 0;
  const matching = new Set<string>();
  if (filtered) {
    for (const node of nodes)
      for (const cell of node.cells) if (matches(cell, words, states)) matching.add(cell.gpu.uuid);
  }
  const shown = filtered ? nodes.filter((node) => node.cells.some((cell) => matching.has(cell.gpu.uuid))) : nodes;
  const size = gpus <= LARGE_UP_TO ? "large" : gpus <= MIDDLE_UP_TO ? "middle" : "small";
  const columns = Math.max(...nodes.map((node) => node.cells.length), 1);
  return (
    <div>
      {holders ? <HolderLegend holders={holders} /> : <MapKey size={size} measure={measure} />}
      {filtered && (
        <p class="soft" role="status">
          {matching.size ? t("fleet.shown", { shown: matching.size, count: gpus }) : t("fleet.none_match")}{" "}
          <button class="bare" onClick={() => changeQuery({ q: "", s: "" })}>
            {t("fleet.clear")}
          </button>
        </p>
      )}
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
    </div>
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
  const map = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const painter = useRef<LevelPainter | undefined>(undefined);
  const width = useWidth(map);
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

function useWidth(element: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(element.current?.clientWidth ?? 0));
    if (element.current) watch.observe(element.current);
    return () => watch.disconnect();
  }, []);
  return width;
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
