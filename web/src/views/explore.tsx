// Any PromQL, as a graph over the range and as a table of now: one query or several under each other, on one time axis.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import {
  errorText,
  fetchMetadata,
  queryInstant,
  queryRange,
  type InstantSample,
  type MetricHelp,
  type Series,
} from "../api";
import { csvText, saveFile } from "../csv";
import { t, useLanguage } from "../i18n";
import type { LivePicture } from "../live";
import { useInTurn } from "../parts/in-turn";
import { QueryGraph } from "../parts/query-graph";
import { PromqlBox } from "../parts/promql-box";
import { TimePicker } from "../parts/time-picker";
import { formatValue, type Unit } from "../format";
import { Segments } from "../parts/controls";
import { describeMetric, nameGpus } from "../promql";
import { findError } from "../promql-errors";
import { changeQuery, route } from "../router";
import { useStore } from "../store";
import { alignSpan, chooseStep, type Span } from "../time";
import { timeline } from "../timeline";
import { unitOf } from "../units";

const EXAMPLES = [
  "gpuscope_gpu_utilization_ratio",
  "sum by (node) (gpuscope_gpu_power_watts * on (uuid) group_left (node) gpuscope_gpu_info)",
  "topk(5, gpuscope_process_memory_bytes)",
  "rate(gpuscope_gpu_energy_joules_total[5m])",
];
const MOST_ROWS = 500;
const MOST_QUERIES = 6;

export interface Found {
  expression: string;
  span: Span;
  step: number;
  series: Series[];
  vector: InstantSample[];
  milliseconds: number;
}

/** `q`, `q2`, `q3` …: keys of the address, so that a link has all of them. */
const keyOf = (place: number): string => (place ? `q${place + 1}` : "q");

export function Explore({ picture }: { picture: LivePicture }): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const metadata = useMetadata();
  const asTable = query["as"] === "table";
  const [more, setMore] = useState(0);
  const used = Array.from({ length: MOST_QUERIES }, (_, place) => place).filter(
    (place) => place && keyOf(place) in query,
  ).length;
  const shown = Math.min(1 + Math.max(used, more), MOST_QUERIES);
  return (
    <div class="explore">
      <div class="head">
        <h1>{t("nav.explore")}</h1>
      </div>
      <div class="controls">
        <TimePicker />
        <Segments
          label={t("explore.as")}
          queryKey="as"
          choices={["graph", "table"] as const}
          chosen={asTable ? "table" : "graph"}
          title={(one) => t(`explore.${one}`)}
        />
        <button disabled={shown >= MOST_QUERIES} onClick={() => setMore(shown)}>
          {t("explore.add")}
        </button>
      </div>
      {Array.from({ length: shown }, (_, place) => (
        <OneQuery
          key={place}
          place={place}
          asTable={asTable}
          metadata={metadata}
          picture={picture}
          remove={() => setMore(Math.max(shown - 2, 0))}
        />
      ))}
      {!query["q"] && <Examples />}
    </div>
  );
}

interface QueryProps {
  place: number;
  asTable: boolean;
  metadata: Readonly<Record<string, MetricHelp[]>>;
  picture: LivePicture;
  remove(): void;
}

function OneQuery({ place, asTable, metadata, picture, remove }: QueryProps): JSX.Element {
  const { query } = useStore(route);
  const key = keyOf(place);
  const expression = (query[key] ?? "").trim();
  const { found, problem, loading } = useExpression(expression);
  const unit = unitOf(expression, metadata);
  const names = useMemo(
    () => new Map(picture.gpus.map((gpu) => [gpu.uuid, `${gpu.node} GPU ${gpu.gpu}`])),
    [picture.gpus.length],
  );
  return (
    <section class="section" aria-label={expression || t("explore.box")}>
      <PromqlBox
        value={query[key] ?? ""}
        run={(text) => changeQuery({ [key]: text }, true)}
        id={place ? `search-${place}` : "search"}
      />
      <div class="controls">
        {found && <Downloads found={found} asTable={asTable} unit={unit} />}
        {place > 0 && (
          <button
            onClick={() => {
              changeQuery({ [key]: "" }, true);
              remove();
            }}
          >
            {t("explore.remove")}
          </button>
        )}
        {found && (
          <span class="soft small" role="status">
            {t("explore.took", { series: found.series.length, time: Math.round(found.milliseconds) })}
          </span>
        )}
      </div>
      {problem && <Problem expression={expression} problem={problem} />}
      {!problem &&
        found &&
        (asTable ? (
          <VectorTable vector={found.vector} unit={unit} names={names} />
        ) : (
          <QueryGraph found={found} unit={unit} names={names} />
        ))}
      {!problem && !found && loading && <p class="soft">{t("panel.loading")}</p>}
    </section>
  );
}

/** The text with the place of the mistake marked, and the engine's own words. */
function Problem({ expression, problem }: { expression: string; problem: string }): JSX.Element {
  const place = findError(expression, problem);
  return (
    <div class="panel" role="alert">
      {place && (
        <pre class="wrong">
          {expression.slice(0, place.from)}
          <mark>{expression.slice(place.from, place.to) || " "}</mark>
          {expression.slice(place.to)}
        </pre>
      )}
      <div class="message brief failed">
        <bdi>
          {place && `${t("explore.at", { place: place.from + 1 })} `}
          {problem}
        </bdi>
      </div>
    </div>
  );
}

function Examples(): JSX.Element {
  return (
    <ul class="section">
      {EXAMPLES.map((one) => (
        <li key={one}>
          <button class="bare" onClick={() => changeQuery({ q: one }, true)}>
            <code>{one}</code>
          </button>
        </li>
      ))}
    </ul>
  );
}

function Downloads({ found, asTable, unit }: { found: Found; asTable: boolean; unit: Unit }): JSX.Element {
  const json = (): void =>
    saveFile("gpuscope-query.json", "application/json", JSON.stringify(asTable ? found.vector : found.series, null, 1));
  const csv = (): void =>
    saveFile("gpuscope-query.csv", "text/csv", asTable ? vectorCsv(found.vector, unit) : seriesCsv(found.series));
  return (
    <>
      <button onClick={csv}>CSV</button>
      <button onClick={json}>JSON</button>
    </>
  );
}

const labelNames = (metrics: readonly Readonly<Record<string, string>>[]): string[] =>
  [...new Set(metrics.flatMap((metric) => Object.keys(metric)))].sort();

/** One line for each sample: what any program reads. */
export function seriesCsv(series: readonly Series[]): string {
  const names = labelNames(series.map((one) => one.metric));
  const rows = series.flatMap((one) =>
    one.values.map(([time, value]) => [
      new Date(time * 1000).toISOString(),
      ...names.map((name) => one.metric[name]),
      toNumber(value),
    ]),
  );
  return csvText(["time", ...names, "value"], rows);
}

function vectorCsv(vector: readonly InstantSample[], unit: Unit): string {
  const names = labelNames(vector.map((one) => one.metric));
  return csvText(
    [...names, unit === "count" ? "value" : unit],
    vector.map((one) => [...names.map((name) => one.metric[name]), toNumber(one.value[1])]),
  );
}

const toNumber = (text: string): string | number => (Number.isFinite(Number(text)) ? Number(text) : text);

function useMetadata(): Readonly<Record<string, MetricHelp[]>> {
  const [metadata, setMetadata] = useState<Readonly<Record<string, MetricHelp[]>>>({});
  useEffect(() => {
    const stop = new AbortController();
    // An engine without metadata: names say the unit.
    fetchMetadata(stop.signal).then(setMetadata, () => undefined);
    return () => stop.abort();
  }, []);
  return metadata;
}

function useExpression(expression: string): { found?: Found; problem?: string; loading: boolean } {
  const { range, span } = useStore(timeline);
  const [state, setState] = useState<{ found?: Found; problem?: string; loading: boolean }>({ loading: false });
  const asked = useRef("");
  useEffect(() => {
    if (!expression) setState({ loading: false });
  }, [expression]);
  const key = expression && [range.from, range.to, expression].join("\n");
  useInTurn(key, span, (signal) => {
    const step = chooseStep(span.end - span.start, Math.min(innerWidth, 1600));
    const aligned = alignSpan(span, step);
    const startedAt = performance.now();
    const isSame = asked.current === expression;
    asked.current = expression;
    setState((old) => (isSame ? { ...old, loading: true } : { loading: true }));
    return Promise.all([
      queryRange(expression, aligned.start, aligned.end, step, signal),
      queryInstant(expression, span.end, signal),
    ])
      .then(([series, instant]) => {
        const vector =
          instant.resultType === "vector"
            ? instant.result
            : instant.resultType === "matrix"
              ? []
              : [{ metric: {}, value: instant.result }];
        setState({
          found: { expression, span: aligned, step, series, vector, milliseconds: performance.now() - startedAt },
          loading: false,
        });
      })
      .catch((error: unknown) => {
        if (!signal.aborted) setState({ problem: errorText(error), loading: false });
      });
  });
  return state;
}

function VectorTable({
  vector,
  unit,
  names,
}: {
  vector: readonly InstantSample[];
  unit: Unit;
  names: ReadonlyMap<string, string>;
}): JSX.Element {
  if (!vector.length)
    return (
      <div class="panel">
        <div class="message">{t("explore.nothing")}</div>
      </div>
    );
  return (
    <div class="scroll panel" tabIndex={0} role="region" aria-label={t("explore.table")}>
      <table>
        <thead>
          <tr>
            <th scope="col">{t("table.series")}</th>
            <th scope="col" class="number">
              {t("table.value")}
            </th>
          </tr>
        </thead>
        <tbody>
          {vector.slice(0, MOST_ROWS).map((sample, place) => (
            <tr key={place}>
              <td class="metric">
                <code>{describeMetric(nameGpus(sample.metric, names))}</code>
              </td>
              <td class="number" title={sample.value[1]}>
                {unit === "count" ? sample.value[1] : formatValue(Number(sample.value[1]), unit)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {vector.length > MOST_ROWS && <p class="soft small">{t("explore.first", { count: MOST_ROWS })}</p>}
    </div>
  );
}
