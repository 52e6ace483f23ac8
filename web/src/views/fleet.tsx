// Every GPU at a glance. One cell is one link; what changed is worked out per cell, so that 1,000 of them are drawn
// anew within a few milliseconds.
import type { JSX } from "preact";
import { useMemo, useRef } from "preact/hooks";
import {
  arrange,
  colourHolders,
  MEASURES,
  matches,
  spreadOf,
  STATES,
  powerOf,
  toWords,
  type Measure,
  type NodeCells,
} from "../fleet";
import { queryInstant } from "../api";
import { formatValue, localNumber } from "../format";
import { FLEET_GROUPINGS, labelChoices, nodeLabels, NODE_LABELS_QUERY, regroup, type NodeLabels } from "../grouping";
import { t, useLanguage } from "../i18n";
import { nodeNames, serverNow, type LiveCounts, type LivePicture } from "../live";
import { useAsked } from "../parts/asked";
import { Attention } from "../parts/attention";
import { SearchBox, Segments } from "../parts/controls";
import { FleetMap, Matching, type MapProps } from "../parts/fleet-map";
import { lazy } from "../parts/lazy";
import { GLYPHS, Distribution, spreadText, stateName, Swatch } from "../parts/marks";
import { NoGpus } from "../parts/no-gpus";
import { Today } from "../parts/today";
import { changeQuery, route } from "../router";
import { useStore } from "../store";

const FEW_GPUS = 16;

const HeatMap = lazy(async () => (await import("../parts/heat-map")).HeatMap);
const FewGpus = lazy(async () => (await import("../parts/few-gpus")).FewGpus);

export function Fleet({ picture }: { picture: LivePicture }): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const nodes = useMemo(() => arrange(picture), [picture]);
  const { counts, findings } = picture;
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
  if (!counts.gpus) return <NoGpus nodes={nodes} findings={<Attention picture={picture} />} />;
  const overTime = query["v"] === "time";
  return (
    <div class="data">
      <h1 class="visually-hidden">{t("fleet.title")}</h1>
      <TotalsStrip counts={counts} nodes={nodes} />
      <Today />
      <Controls measure={overTime ? undefined : measure} states={states} counts={counts} />
      <Arrangement by={by} label={query["label"] ?? ""} choices={labelChoices(labels)} overTime={overTime} />
      <div class="fleet aside">
        <Attention picture={picture} />
        <div>
          {overTime ? (
            <OverTime nodes={nodes} picture={picture} search={query["q"] ?? ""} states={states} gpus={counts.gpus} />
          ) : (
            <FleetMap
              nodes={groups}
              measure={measure}
              search={query["q"] ?? ""}
              states={states}
              gpus={counts.gpus}
              holders={holders}
              findings={findings}
            />
          )}
          {nodes.length === 1 && counts.gpus <= FEW_GPUS && <FewGpus picture={picture} />}
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

function TotalsStrip({ counts, nodes }: { counts: LiveCounts; nodes: NodeCells[] }): JSX.Element {
  const spread = spreadOf(nodes.flatMap((node) => node.cells));
  const power = useMemo(() => powerOf(nodes), [nodes]);
  const { held = 0, lost = 0, gone = 0 } = counts.states;
  return (
    <dl class="totals">
      <Total
        name={t("fleet.gpus")}
        value={localNumber(counts.gpus, 0)}
        id="gpus"
        note={[
          t("fleet.nodes", { count: nodes.length }),
          counts.instances ? t("fleet.instances", { count: counts.instances }) : "",
        ]
          .filter(Boolean)
          .join(", ")}
      />
      <Total
        name={t("fleet.in_use")}
        value={localNumber(counts.in_use, 0)}
        id="in-use"
        note={counts.instances ? t("fleet.of_units", { count: counts.units }) : ""}
      />
      <Total name={t("fleet.held_idle")} value={localNumber(held, 0)} id="held-idle" act={held > 0} />
      <Total name={t("fleet.lost")} value={localNumber(lost, 0)} id="lost" act={lost > 0} severe />
      {gone > 0 && <Total name={t("fleet.gone")} value={localNumber(gone, 0)} id="gone" act severe />}
      <Total
        name={t("fleet.power")}
        value={formatValue(power.watts, "watts")}
        id="power"
        note={power.of < counts.gpus ? t("fleet.power_of", { count: power.of }) : ""}
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
  counts: LiveCounts;
}

function Controls({ measure, states, counts }: ControlProps): JSX.Element {
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
        {STATES.filter((state) => counts.states[state] || states.includes(state)).map((state) => (
          <button key={state} aria-pressed={states.includes(state)} onClick={() => toggle(state)}>
            <Swatch state={state} />
            {GLYPHS[state] && <b aria-hidden="true">{GLYPHS[state]}</b>}
            {stateName(state)} <span class="soft">{localNumber(counts.states[state] ?? 0, 0)}</span>
          </button>
        ))}
      </div>
    </div>
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
