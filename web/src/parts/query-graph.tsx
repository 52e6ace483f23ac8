// The graph of one query in Explore: its lines, with node and GPU instead of a UUID where the fleet knows it.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { columnOf, timesOf } from "../charts/align";
import { drawLines, type LineOptions } from "../charts/plot";
import { formatMoment, formatValue, type Unit } from "../format";
import { spoken, t } from "../i18n";
import { serverNow } from "../live";
import { commonLabels, describeMetric, nameGpus } from "../promql";
import type { Found } from "../views/explore";
import { plotOptions, shapeOf, usePlot } from "./chart-body";
import { useWidth } from "./width";

const MOST_LINES = 100;
const MOST_NAMED = 40;

export function QueryGraph({
  found,
  unit,
  names,
}: {
  found: Found;
  unit: Unit;
  names: ReadonlyMap<string, string>;
}): JSX.Element {
  const { box, width } = useWidth();
  const [cursor, setCursor] = useState<number>();
  const times = useMemo(() => timesOf(found.span, found.step), [found]);
  const lines = useMemo(() => {
    const metrics = found.series.map((one) => nameGpus(one.metric, names));
    const common = commonLabels(metrics);
    return found.series.slice(0, MOST_LINES).map((one, place) => ({
      name: describeMetric(metrics[place] ?? {}, common),
      column: columnOf(one, found.span, found.step, times.length),
    }));
  }, [found, names]);
  const options = useMemo(
    (): LineOptions => ({
      ...plotOptions(times, Math.max(width - 24, 100), [], setCursor),
      lines,
      height: 300,
      formatValue: (value) => formatValue(value, unit),
      binary: unit === "bytes",
    }),
    [lines, width, unit],
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
      {at !== undefined && <p class="soft small">{formatMoment(at, serverNow(), spoken.get().code)}</p>}
      <ul class="series">
        {lines.slice(0, MOST_NAMED).map((line, place) => (
          <li key={place} class="metric">
            <i style={{ "--c": `var(--c${(place % 8) + 1})` }} /> <code>{line.name}</code>
            <b>{cursor === undefined ? "" : formatValue(line.column[cursor], unit)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}
