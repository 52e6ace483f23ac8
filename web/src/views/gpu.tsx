// One GPU or MIG instance: now, and over time.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { queryInstant } from "../api";
import { arrange, holdersOf, levelOf, type Cell } from "../fleet";
import { ABSENT, formatValue, shortModel } from "../format";
import { t, tName, useLanguage } from "../i18n";
import { serverNow, type LivePicture } from "../live";
import { Findings } from "../parts/attention";
import { Fact, Facts, Missing } from "../parts/facts";
import { GrafanaLink } from "../parts/grafana-link";
import { Name, stateName, Swatch } from "../parts/marks";
import { PanelGrid, useMarks } from "../parts/panel-grid";
import { SessionTable } from "../parts/session-table";
import { TimePicker } from "../parts/time-picker";
import { linkTo } from "../router";

export function Gpu({ picture, name }: { picture: LivePicture; name: string }): JSX.Element {
  useLanguage();
  const cell = useMemo(() => findCell(picture, name), [picture, name]);
  const variables = useMemo(() => ({ uuid: name }), [name]);
  const marks = useMarks("gpu_events", variables);
  if (!cell) return <Missing title={t("gpu.missing")} name={name} />;
  const { gpu } = cell;
  const uuids = [gpu.uuid, gpu.parent ?? "", ...cell.parts.map((part) => part.gpu.uuid)];
  const findings = picture.findings.filter((one) => one.uuids.some((uuid) => uuids.includes(uuid)));
  return (
    <div class="data">
      <div class="head">
        <span class="crumb">
          <a href={linkTo("fleet")}>{t("nav.fleet")}</a> ›{" "}
          <a href={linkTo("node", gpu.node)}>
            <Name text={gpu.node} />
          </a>{" "}
          ›
        </span>
        <h1>{t("gpu.gpu", { gpu: gpu.gpu })}</h1>
        <span class="soft">
          <Name text={[gpu.profile, shortModel(gpu.model ?? "")].filter(Boolean).join(" · ")} />
        </span>
        <span>
          <Swatch state={gpu.state} /> {stateName(gpu.state)}
          {gpu.why ? `: ${tName("why", gpu.why)}` : ""}
        </span>
        <GrafanaLink
          dashboard="gpu"
          variables={{
            uuid: gpu.uuid,
            instance: picture.nodes.find((one) => one.name === gpu.node)?.instance ?? gpu.node,
          }}
        />
      </div>
      <Findings findings={findings} />
      <GpuFacts cell={cell} />
      <Identity uuid={gpu.parent ?? gpu.uuid} shown={gpu.uuid} />
      <Relatives picture={picture} cell={cell} />
      <div class="controls">
        <TimePicker />
        <a class="button" href={linkTo("changes", "", { node: gpu.node })}>
          {t("changes.title")}
        </a>
        <a class="button" href={linkTo("compare", "", { gpus: siblings(picture, gpu.node, gpu.uuid) })}>
          {t("compare.siblings")}
        </a>
      </div>
      <PanelGrid
        view="gpu"
        variables={variables}
        marks={marks}
        hideEmpty={(panel) => panel.id !== "gpu_utilization" && panel.kind !== "events"}
      />
      <section class="section">
        <h2>{t("sessions.now")}</h2>
        <SessionTable sessions={[cell, ...cell.parts].flatMap((one) => one.sessions)} />
      </section>
    </div>
  );
}

/** This GPU first, then the others of its node, as many as the comparison takes. */
const siblings = (picture: LivePicture, node: string, uuid: string): string =>
  [uuid, ...picture.gpus.filter((one) => one.node === node && one.uuid !== uuid && !one.parent).map((one) => one.uuid)]
    .slice(0, 8)
    .join(",");

function findCell(picture: LivePicture, uuid: string): Cell | undefined {
  const cells = arrange(picture).flatMap((node) => node.cells);
  return [...cells, ...cells.flatMap((cell) => cell.parts)].find((cell) => cell.gpu.uuid === uuid);
}

function GpuFacts({ cell }: { cell: Cell }): JSX.Element {
  const { gpu } = cell;
  return (
    <Facts>
      <Fact name={t("gpu.busy")} value={formatValue(gpu.busy, "ratio")} level={gpu.busy} />
      <Fact name={t("gpu.sm")} value={formatValue(gpu.sm, "ratio")} level={gpu.sm} />
      <Fact name={t("gpu.tensor")} value={formatValue(gpu.tensor, "ratio")} level={gpu.tensor} />
      <Fact name={t("gpu.dram")} value={formatValue(gpu.dram, "ratio")} level={gpu.dram} />
      <Fact
        name={t("gpu.memory")}
        value={formatValue(gpu.memory_used, "bytes")}
        of={formatValue(gpu.memory_total, "bytes")}
        level={levelOf(gpu, "memory")}
      />
      <Fact
        name={t("gpu.power")}
        value={formatValue(gpu.power, "watts")}
        of={formatValue(gpu.power_limit, "watts")}
        level={levelOf(gpu, "power")}
      />
      <Fact
        name={t("gpu.temperature")}
        value={formatValue(gpu.temperature, "celsius")}
        level={levelOf(gpu, "temperature")}
      />
      <Fact
        name={t("gpu.held_by")}
        value={holdersOf(cell).join(", ") || (gpu.state === "idle" ? t("fleet.free") : ABSENT)}
      />
    </Facts>
  );
}

const IDENTITY = [
  ["gpu.serial", "serial"],
  ["gpu.pci", "pci_bus_id"],
  ["gpu.vbios", "vbios_version"],
  ["gpu.driver", "driver_version"],
] as const;

/** What a board is known by at the rack and in a support case; of an instance, its board's. Lost ones have it, too. */
function Identity({ uuid, shown }: { uuid: string; shown: string }): JSX.Element {
  const [labels, setLabels] = useState<Record<string, string>>({});
  useEffect(() => {
    const stop = new AbortController();
    const query = `last_over_time(gpuscope_gpu_info{uuid=${JSON.stringify(uuid)}}[1d])`;
    queryInstant(query, serverNow(), stop.signal).then(
      (data) => setLabels(data.resultType === "vector" ? mergeIdentity(data.result.map((one) => one.metric)) : {}),
      () => undefined, // no history: the rest of the view goes on
    );
    return () => stop.abort();
  }, [uuid]);
  return (
    <dl class="identity small">
      {IDENTITY.map(([name, label]) => [
        <dt>{t(name)}</dt>,
        <dd class="mono">
          <Name text={labels[label] || ABSENT} />
        </dd>,
      ])}
      <dt>{t("gpu.uuid")}</dt>
      <dd class="mono">
        <Name text={shown} />
      </dd>
    </dl>
  );
}

/** A new driver is a new series: of several, what any of them knows. */
const mergeIdentity = (found: readonly Record<string, string>[]): Record<string, string> =>
  Object.assign({}, ...found.map((one) => Object.fromEntries(Object.entries(one).filter(([, text]) => text))));

/** The board of an instance, the instances of a board. */
function Relatives({ picture, cell }: { picture: LivePicture; cell: Cell }): JSX.Element | null {
  const parent = picture.gpus.find((gpu) => gpu.uuid === cell.gpu.parent);
  if (!parent && !cell.parts.length) return null;
  // An instance is named by its GPU and NVIDIA's two ids, as nvidia-smi lists them: 6_2_0.
  const ids = /^\d+_(\d+)_(\d+)$/.exec(cell.gpu.gpu);
  const others = parent ? [parent] : cell.parts.map((part) => part.gpu);
  return (
    <p class="controls">
      {parent ? t("gpu.part_of") : t("gpu.split_into")}{" "}
      {others.map((gpu) => (
        <a class="button" key={gpu.uuid} href={linkTo("gpu", gpu.uuid)}>
          <Swatch state={gpu.state} /> {t("gpu.gpu", { gpu: gpu.gpu })} {gpu.profile ?? ""}
        </a>
      ))}
      {ids && <span class="soft">{t("gpu.instance_ids", { gi: ids[1] ?? "", ci: ids[2] ?? "" })}</span>}
    </p>
  );
}
