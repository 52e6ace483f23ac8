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
import { queryInstant } from "../api";
import { formatValue } from "../format";
import { FLEET_GROUPINGS, labelChoices, nodeLabels, NODE_LABELS_QUERY, regroup, type NodeLabels } from "../grouping";
import { t, useLanguage } from "../i18n";
import { nodeNames, serverNow, type Finding, type LivePicture } from "../live";
import { useAsked } from "../parts/asked";
import { Attention } from "../parts/attention";
import { Card } from "../parts/card";
import { SearchBox, Segments } from "../parts/controls";
import { lazy } from "../parts/lazy";
import { GLYPHS, Distribution, spreadText, stateName, Swatch } from "../parts/marks";
import { HolderLegend, MapKey } from "../parts/map-key";
import { NoGpus } from "../parts/no-gpus";
import { NodeRow } from "../parts/node-row";
import { Today } from "../parts/today";
import { TinyMap } from "../parts/tiny-map";
import { changeQuery, route } from "../router";
import { useStore } from "../store";

/** Above this no cell is an element of its own. */
const SMALL_UP_TO = 2000;
const LARGE_UP_TO = 64;
const MIDDLE_UP_TO = 256;
const FEW_GPUS = 16;

const HeatMap = lazy(async () => (await import("../parts/heat-map")).HeatMap);
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
  const by = FLEET_GROUPINGS.find((one) => one === query["by"]) ?? "node";
  const labels = useNodeLabels(by);
  const groups = useMemo(() => regroup(nodes, by, labels, query["label"] ?? ""), [nodes, by, labels, query["label"]]);
  if (!totals.gpus) return <NoGpus nodes={nodes} findings={<Attention findings={findings} gpus={0} />} />;
  const overTime = query["v"] === "time";
  return (
    <div class="data">
      <h1 class="visually-hidden">{t("fleet.title")}</h1>
      <TotalsStrip totals={totals} nodes={nodes} />
      <Today />
      <Controls measure={overTime ? undefined : measure} states={states} totals={totals} />
      <Arrangement by={by} label={query["label"] ?? ""} choices={labelChoices(labels)} overTime={overTime} />
      <div class="fleet aside">
        <Attention findings={findings} gpus={totals.units - totals.states.lost - totals.states.gone} />
        <div>
          {overTime ? (
            <OverTime nodes={nodes} picture={picture} search={query["q"] ?? ""} states={states} gpus={totals.gpus} />
          ) : (
            <FleetMap
              nodes={groups}
              measure={measure}
              search={query["q"] ?? ""}
              states={states}
              gpus={totals.gpus}
              holders={holders}
              findings={findings}
            />
          )}
          {nodes.length === 1 && totals.gpus <= FEW_GPUS && <FewGpus picture={picture} />}
        </div>
      </div>
    </div>
  );
}

const LABELS_EVERY_MS = 60_000;

/** Asked for only where the fleet is grouped by what the live picture does not have. */
function useNodeLabels(by: string): NodeLabels {
  const wanted = by === "partition" || by === "label";
  const asked = useAsked(
    async (signal): Promise<NodeLabels> => {
      if (!wanted) return NO_LABELS;
      const data = await queryInstant(NODE_LABELS_QUERY, serverNow(), signal);
      return nodeLabels(data.resultType === "vector" ? data.result : []);
    },
    String(wanted),
    LABELS_EVERY_MS,
  );
  return asked.data ?? NO_LABELS;
}

const NO_LABELS: NodeLabels = new Map();

interface ArrangementProps {
  by: string;
  label: string;
  choices: readonly string[];
  overTime: boolean;
}

function Arrangement({ by, label, choices, overTime }: ArrangementProps): JSX.Element {
  return (
    <div class="controls">
      <Segments
        label={t("explore.as")}
        queryKey="v"
        choices={["now", "time"]}
        chosen={overTime ? "time" : "now"}
        title={(one) => t(one === "now" ? "findings.now" : "fleet.over_time")}
      />
      {!overTime && (
        <label class="inline">
          {t("sessions.by")}
          <select
            value={by}
            onChange={(event) =>
              changeQuery({ by: event.currentTarget.value === "node" ? "" : event.currentTarget.value })
            }
          >
            {FLEET_GROUPINGS.map((one) => (
              <option key={one} value={one}>
                {t(`group.${one}`)}
              </option>
            ))}
          </select>
        </label>
      )}
      {!overTime && by === "label" && (
        <select
          aria-label={t("group.label")}
          value={label}
          onChange={(event) => changeQuery({ label: event.currentTarget.value })}
        >
          <option value="">–</option>
          {choices.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      )}
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
  /** Absent where the view shows one measure only. */
  measure: Measure | undefined;
  states: string[];
  totals: Totals;
}

function Controls({ measure, states, totals }: ControlProps): JSX.Element {
  const toggle = (state: string): void => {
    const next = states.includes(state) ? states.filter((one) => one !== state) : [...states, state];
    changeQuery({ s: next.join(",") });
  };
  return (
    <div class="controls">
      {measure && (
        <Segments
          label={t("measure.label")}
          queryKey="m"
          choices={MEASURES}
          chosen={measure}
          usual="busy"
          title={(one) => t(`measure.${one}`)}
        />
      )}
      <SearchBox label={t("fleet.search")} />
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

function Matching({ count, gpus }: { count: number; gpus: number }): JSX.Element {
  return (
    <p class="soft" role="status">
      {count ? t("fleet.shown", { shown: count, count: gpus }) : t("fleet.none_match")}{" "}
      <button class="bare" onClick={() => changeQuery({ q: "", s: "" })}>
        {t("fleet.clear")}
      </button>
    </p>
  );
}

interface OverTimeProps extends Pick<MapProps, "nodes" | "search" | "states" | "gpus"> {
  picture: LivePicture;
}

/** The same filters as on the map. */
function OverTime({ nodes, picture, search, states, gpus }: OverTimeProps): JSX.Element {
  const words = toWords(search);
  const isFiltered = words.length > 0 || states.length > 0;
  const kept = nodes
    .map((node) => ({ ...node, cells: node.cells.filter((cell) => matches(cell, words, states)) }))
    .filter((node) => node.cells.length);
  return (
    <>
      {isFiltered && <Matching count={kept.reduce((sum, node) => sum + node.cells.length, 0)} gpus={gpus} />}
      <HeatMap nodes={kept} names={nodeNames(picture)} isFiltered={isFiltered} />
    </>
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
