// One node: its GPUs side by side, its host, and who is on it.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { arrange, type NodeCells } from "../fleet";
import { ABSENT, formatDuration, formatValue } from "../format";
import { t, useLanguage } from "../i18n";
import { serverNow, type Finding, type LiveNode, type LivePicture } from "../live";
import { panelsOf, toRegex } from "../panels";
import { Findings } from "../parts/attention";
import { Fact, Facts, Missing } from "../parts/facts";
import { GrafanaLink } from "../parts/grafana-link";
import { MapKey } from "../parts/map-key";
import { Name } from "../parts/marks";
import { NodeRow } from "../parts/node-row";
import { PanelBox } from "../parts/panel";
import { PanelGrid, useMarks } from "../parts/panel-grid";
import { SessionTable } from "../parts/session-table";
import { TimePicker } from "../parts/time-picker";
import { linkTo } from "../router";

export function Node({ picture, name }: { picture: LivePicture; name: string }): JSX.Element {
  useLanguage();
  const cells = useMemo(() => arrange(picture).find((one) => one.name === name), [picture, name]);
  const node = picture.nodes.find((one) => one.name === name);
  const uuids = toRegex(
    picture.gpus
      .filter((gpu) => gpu.node === name)
      .map((gpu) => gpu.uuid)
      .sort(),
  );
  const variables = useMemo(() => ({ uuids, instance: node?.instance ?? name }), [uuids, node?.instance, name]);
  const marks = useMarks("node_events", variables);
  if (!cells) return <Missing title={t("node.missing")} name={name} />;
  const findings = picture.findings.filter((one) => one.node === name);
  const sessions = picture.sessions.filter((one) => one.node === name);
  return (
    <div class="data">
      <div class="head">
        <span class="crumb">
          <a href={linkTo("fleet")}>{t("nav.fleet")}</a> ›
        </span>
        <h1>
          <Name text={name} />
        </h1>
        <GrafanaLink dashboard="node" variables={{ instance: variables.instance }} />
      </div>
      <Findings findings={findings} />
      {node && <HostFacts node={node} />}
      <Cells cells={cells} findings={findings} />
      <div class="section controls">
        <TimePicker />
        <a class="button" href={linkTo("changes", "", { node: name })}>
          {t("changes.title")}
        </a>
      </div>
      <PanelGrid
        view="node"
        variables={variables}
        marks={marks}
        hideEmpty={(panel) => panel.id !== "node_utilization" && panel.kind === "lines"}
      />
      <section class="section">
        <h2>{t("node.host")}</h2>
        <div class="panels">
          {panelsOf("host").map((panel) => (
            <PanelBox key={panel.id} panel={panel} variables={variables} marks={marks} />
          ))}
        </div>
      </section>
      <section class="section">
        <h2>{t("sessions.now")}</h2>
        <SessionTable sessions={sessions} />
      </section>
    </div>
  );
}

function Cells({ cells, findings }: { cells: NodeCells; findings: readonly Finding[] }): JSX.Element {
  const columns = Math.max(Math.min(cells.cells.length, 8), 1);
  return (
    <>
      <MapKey size="large" measure="busy" />
      <div class="map tabbed" data-size="large" data-measure="busy" style={{ "--columns": columns }}>
        <NodeRow node={cells} measure="busy" size="large" matching={undefined} findings={findings} tabbed />
      </div>
    </>
  );
}

function HostFacts({ node }: { node: LiveNode }): JSX.Element {
  const share = node.memory_used !== undefined && node.memory_total ? node.memory_used / node.memory_total : undefined;
  const seen = node.gpus_seen === undefined ? undefined : String(node.gpus_seen);
  return (
    <Facts>
      <Fact
        name={t("fleet.gpus")}
        value={seen ?? formatValue(undefined, "count")}
        of={node.gpus_expected === undefined ? "" : String(node.gpus_expected)}
      />
      <Fact name={t("node.cpu")} value={formatValue(node.cpu, "ratio")} level={node.cpu} />
      <Fact name={t("node.load")} value={formatValue(node.load1, "count")} />
      <Fact
        name={t("node.memory")}
        value={formatValue(node.memory_used, "bytes")}
        of={formatValue(node.memory_total, "bytes")}
        level={share}
      />
      <Fact
        name={t("node.sources")}
        value={node.sources.map((one) => `${one.name} ${one.up ? "✓" : "✕"}`).join(", ") || ABSENT}
      />
      <Fact
        name={t("node.age")}
        value={formatDuration(node.taken_at === undefined ? undefined : serverNow() - node.taken_at)}
      />
    </Facts>
  );
}
