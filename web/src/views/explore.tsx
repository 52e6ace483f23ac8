// Any PromQL, as a graph over the range and as a table of now.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { queryInstant, queryRange, type InstantSample, type Series } from "../api";
import { columnOf, timesOf } from "../charts/align";
import { drawLines, type LineOptions } from "../charts/plot";
import { formatMoment, formatValue, type Unit } from "../format";
import { t, useLanguage } from "../i18n";
import { serverNow } from "../live";
import { plotOptions, shapeOf, usePlot } from "../parts/chart-body";
import { PromqlBox } from "../parts/promql-box";
import { TimePicker } from "../parts/time-picker";
import { commonLabels, describeMetric } from "../promql";
import { changeQuery, route } from "../router";
import { useStore } from "../store";
import { alignSpan, chooseStep, type Span } from "../time";
import { timeline } from "../timeline";
import { download } from "./sessions";

const EXAMPLES = [
  "gpuscope_gpu_utilization_ratio",
  "sum by (node) (gpuscope_gpu_power_watts * on (uuid) group_left (node) gpuscope_gpu_info)",
  "topk(5, gpuscope_process_memory_bytes)",
  "rate(gpuscope_gpu_energy_joules_total[5m])",
];
const MOST_LINES = 100;
const MOST_ROWS = 500;

interface Found {
  expression: string;
  span: Span;
  step: number;
  series: Series[];
  vector: InstantSample[];
  milliseconds: number;
}

export function Explore(): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const expression = (query["q"] ?? "").trim();
  const asTable = query["as"] === "table";
  const { found, problem, loading } = useExpression(expression);
  return (
    <div class="explore">
      <div class="head">
        <h1>{t("nav.explore")}</h1>
      </div>
      <PromqlBox value={query["q"] ?? ""} run={(text) => changeQuery({ q: text }, true)} />
      {!expression && <Examples />}
      <div class="controls section">
        <TimePicker />
        <div class="segments" role="group" aria-label={t("explore.as")}>
          <button aria-pressed={!asTable} onClick={() => changeQuery({ as: "" })}>
            {t("explore.graph")}
          </button>
          <button aria-pressed={asTable} onClick={() => changeQuery({ as: "table" })}>
            {t("explore.table")}
          </button>
        </div>
        {found && (
          <button
            onClick={() =>
              download(
                "gpuscope-query.json",
                "application/json",
                JSON.stringify(asTable ? found.vector : found.series, null, 1),
              )
            }
          >
            JSON
          </button>
        )}
        {found && (
          <span class="soft small" role="status">
            {t("explore.took", { series: found.series.length, time: Math.round(found.milliseconds) })}
          </span>
        )}
      </div>
      {problem && (
        <div class="panel">
          <div class="message failed" role="alert">
            <bdi>{problem}</bdi>
          </div>
        </div>
      )}
      {!problem && found && (asTable ? <VectorTable vector={found.vector} /> : <Graph found={found} />)}
      {!problem && !found && loading && <p class="soft">{t("panel.loading")}</p>}
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

function useExpression(expression: string): { found?: Found; problem?: string; loading: boolean } {
  const { span } = useStore(timeline);
  const [state, setState] = useState<{ found?: Found; problem?: string; loading: boolean }>({ loading: false });
  useEffect(() => {
    if (!expression) {
      setState({ loading: false });
      return undefined;
    }
    const stop = new AbortController();
    const step = chooseStep(span.end - span.start, Math.min(innerWidth, 1600));
    const aligned = alignSpan(span, step);
    const startedAt = performance.now();
    setState((old) => (old.found?.expression === expression ? { ...old, loading: true } : { loading: true }));
    Promise.all([
      queryRange(expression, aligned.start, aligned.end, step, stop.signal),
      queryInstant(expression, span.end, stop.signal),
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
        if (!stop.signal.aborted)
          setState({ problem: error instanceof Error ? error.message : String(error), loading: false });
      });
    return () => stop.abort();
  }, [expression, span]);
  return state;
}

/** Names end in their unit, as Prometheus' rules want. */
export function unitOf(expression: string): Unit {
  const name = /^[\w:]+$/.exec(expression.replace(/\{.*\}$/s, ""))?.[0] ?? "";
  if (name.endsWith("_ratio")) return "ratio";
  if (name.endsWith("_bytes")) return "bytes";
  if (name.endsWith("_watts")) return "watts";
  if (name.endsWith("_celsius")) return "celsius";
  if (name.endsWith("_hertz")) return "hertz";
  if (name.endsWith("_bytes_per_second")) return "bytes_per_second";
  return "count";
}

function Graph({ found }: { found: Found }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [cursor, setCursor] = useState<number>();
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(box.current?.clientWidth ?? 0));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const unit = unitOf(found.expression);
  const times = useMemo(() => timesOf(found.span, found.step), [found]);
  const common = useMemo(() => commonLabels(found.series.map((one) => one.metric)), [found]);
  const lines = useMemo(
    () =>
      found.series.slice(0, MOST_LINES).map((one) => ({
        name: describeMetric(one.metric, common),
        column: columnOf(one, found.span, found.step, times.length),
      })),
    [found],
  );
  const options = useMemo(
    (): LineOptions => ({
      ...plotOptions(times, Math.max(width - 24, 100), [], setCursor),
      lines,
      height: 340,
      formatValue: (value) => formatValue(value, unit),
      binary: unit === "bytes",
    }),
    [lines, width],
  );
  const host = usePlot(drawLines, options, shapeOf(lines, width));
  const at = times[cursor ?? -1];
  return (
    <div class="panel" ref={box}>
      {lines.length ? (
        <div class="chart" ref={host} role="img" aria-label={found.expression} />
      ) : (
        <div class="message">{t("explore.nothing")}</div>
      )}
      {found.series.length > MOST_LINES && <p class="soft small">{t("explore.first", { count: MOST_LINES })}</p>}
      {at !== undefined && <p class="soft small">{formatMoment(at, serverNow(), "sv")}</p>}
      <ul class="series">
        {lines.slice(0, 40).map((line, place) => (
          <li key={place} class="metric">
            <i style={{ "--c": `var(--c${(place % 8) + 1})` }} /> <code>{line.name}</code>
            <b>{cursor === undefined ? "" : formatValue(line.column[cursor], unit)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

function VectorTable({ vector }: { vector: readonly InstantSample[] }): JSX.Element {
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
                <code>{describeMetric(sample.metric)}</code>
              </td>
              <td class="number">{sample.value[1]}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {vector.length > MOST_ROWS && <p class="soft small">{t("explore.first", { count: MOST_ROWS })}</p>}
    </div>
  );
}
