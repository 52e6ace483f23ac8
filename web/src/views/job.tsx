// One Slurm job: its receipt, live while it runs. What it was given, what it used, GPU by GPU, and what would help.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { getJson } from "../api";
import type { JobAnswer, JobGpuJson, JobRunJson } from "../api-types";
import { formatDuration, formatHours, formatMoment, formatValue } from "../format";
import { spoken, t, tName, useLanguage } from "../i18n";
import { serverNow, type LivePicture } from "../live";
import { panelById, toRegex } from "../panels";
import { AskedState, useAsked } from "../parts/asked";
import { Findings } from "../parts/attention";
import { CsvButton, DataTable, type Column } from "../parts/data-table";
import { Fact, Facts } from "../parts/facts";
import { Name } from "../parts/marks";
import { PanelBox } from "../parts/panel";
import { SessionTable } from "../parts/session-table";
import { SpreadBar } from "../parts/spread-bar";
import { TimePicker } from "../parts/time-picker";
import { sentenceText } from "../report-text";
import { linkTo } from "../router";

const EVERY_MS = 15_000;
const PANELS = ["node_levels", "node_memory", "node_power"];

export function Job({ picture, name }: { picture: LivePicture; name: string }): JSX.Element {
  useLanguage();
  const asked = useAsked(
    (signal) => getJson<JobAnswer>(`api/job?${new URLSearchParams({ id: name })}`, signal, 60_000),
    name,
    EVERY_MS,
  );
  const receipt = asked.data;
  const live = picture.jobs.find((one) => one.job === name);
  const sessions = picture.sessions.filter((one) => one.job === name);
  const findings = picture.findings.filter((one) => one.owner.kind === "job" && one.owner.name === name);
  return (
    <div class="data">
      <div class="head">
        <span class="crumb">
          <a href={linkTo("slurm", "", { tab: "running" })}>{t("nav.slurm")}</a> ›
        </span>
        <h1>
          {t("group.job")} <Name text={live?.array ?? name} />
        </h1>
        <span class="soft">
          <Name
            text={[
              receipt?.job_name ?? live?.name,
              receipt?.user ?? live?.user,
              receipt?.account ?? live?.account,
              receipt?.partition ?? live?.partition,
            ]
              .filter(Boolean)
              .join(" · ")}
          />
        </span>
        {receipt && <span>{receipt.running ? t("job.runs") : t("job.ended")}</span>}
      </div>
      <Findings findings={findings} />
      <AskedState asked={asked} what={t("group.job")} />
      {receipt && <Receipt receipt={receipt} endsAt={live?.ends_at} />}
      {receipt && <Charts receipt={receipt} />}
      {sessions.length > 0 && (
        <section class="section">
          <h2>{t("sessions.now")}</h2>
          <SessionTable sessions={sessions} />
        </section>
      )}
    </div>
  );
}

function Receipt({ receipt, endsAt }: { receipt: JobAnswer; endsAt: number | undefined }): JSX.Element {
  const language = useLanguage();
  const now = serverNow();
  const hours = (value: number | null): string =>
    value === null ? "–" : t("unit.gpu_hours", { hours: formatHours(value) });
  const idle =
    receipt.busy_hours === null ? null : Math.max(receipt.gpu_hours - receipt.busy_hours - receipt.unknown_hours, 0);
  const columns = gpuColumns();
  const shares = receipt.gpus.map((one) => one.busy_ratio).filter((one): one is number => one !== null);
  return (
    <>
      <Facts>
        <Fact
          name={t("job.given")}
          value={String(receipt.gpus.length)}
          of={receipt.requested_gpus === null ? "" : String(receipt.requested_gpus)}
        />
        <Fact name={t("job.held")} value={hours(receipt.gpu_hours)} />
        <Fact name={t("job.used")} value={hours(receipt.busy_hours)} />
        <Fact name={t("job.wasted")} value={hours(idle)} />
        <Fact
          name={t("job.energy")}
          value={
            receipt.energy_kwh === null
              ? "–"
              : `${receipt.energy_is_estimate ? "≈ " : ""}${formatHours(receipt.energy_kwh)} kWh`
          }
        />
        <Fact name={t("job.peak")} value={formatValue(receipt.peak_memory_ratio, "ratio")} />
        <Fact name={t("job.started")} value={formatMoment(receipt.started_at, now, language)} />
        <Fact
          name={t("slurm.runs")}
          value={formatDuration(receipt.run_seconds)}
          of={receipt.limit_seconds === null ? "" : formatDuration(receipt.limit_seconds)}
        />
        {receipt.waited_seconds !== null && (
          <Fact name={t("job.waited")} value={formatDuration(receipt.waited_seconds)} />
        )}
        {receipt.running && endsAt !== undefined && (
          <Fact name={t("slurm.left")} value={formatDuration(Math.max(endsAt - now, 0))} />
        )}
      </Facts>
      <Troubles receipt={receipt} />
      <Runs receipt={receipt} />
      <section class="section">
        <div class="controls">
          <h2>{t("job.by_gpu")}</h2>
          <SpreadBar values={[...shares].sort((a, b) => a - b)} />
          <CsvButton file={`job-${receipt.name}`} rows={receipt.gpus} columns={columns} />
        </div>
        <DataTable
          name={t("job.by_gpu")}
          rows={receipt.gpus}
          columns={columns}
          keyOf={(one) => one.uuid}
          empty={t("job.unknown")}
        />
      </section>
    </>
  );
}

/** Of a job that was requeued, or a pod that was made again; the receipt is of the last one. */
function Runs({ receipt }: { receipt: JobAnswer }): JSX.Element | null {
  // A server of an earlier version has none.
  const runs = receipt.runs ?? [];
  if (runs.length < 2) return null;
  return (
    <section class="section">
      <h2>{t("job.all_runs", { count: runs.length })}</h2>
      <DataTable
        name={t("job.all_runs", { count: runs.length })}
        rows={runs}
        columns={runColumns()}
        keyOf={(one) => String(one.started_at)}
        empty=""
      />
    </section>
  );
}

/** What went wrong, what would help, and what is not known. */
function Troubles({ receipt }: { receipt: JobAnswer }): JSX.Element {
  const xids = Object.entries(receipt.xids).map(([code, count]) => `XID ${code} × ${count}`);
  const throttled = Object.entries(receipt.throttled_seconds).map(
    ([reason, seconds]) => `${tName("why", reason)} ${formatDuration(seconds)}`,
  );
  return (
    <>
      {xids.length > 0 && <p class="crit">{xids.join(", ")}</p>}
      {throttled.length > 0 && (
        <p>
          {t("job.throttled")}: {throttled.join(", ")}
        </p>
      )}
      {receipt.notes.length > 0 && (
        <ul class="findings section">
          {receipt.notes.map((note) => (
            <li class="finding" key={note.text}>
              <Name text={sentenceText(note.text, note)} /> {note.command && <code>{note.command}</code>}
            </li>
          ))}
        </ul>
      )}
      {receipt.not_known.length > 0 && (
        <div class="section soft small">
          {t("job.not_known")}
          <ul class="points">
            {receipt.not_known.map((one, place) => (
              <li key={one}>
                <WithCode text={sentenceText(one, receipt.not_known_keys[place])} />
              </li>
            ))}
          </ul>
        </div>
      )}
    </>
  );
}

/** What stands between backticks is code. */
function WithCode({ text }: { text: string }): JSX.Element {
  return <bdi>{text.split("`").map((part, place) => (place % 2 ? <code key={place}>{part}</code> : part))}</bdi>;
}

function Charts({ receipt }: { receipt: JobAnswer }): JSX.Element | null {
  const uuids = toRegex(receipt.gpus.map((one) => one.uuid).sort());
  const variables = useMemo(() => ({ uuids }), [uuids]);
  if (!uuids) return null;
  return (
    <section class="section">
      <TimePicker />
      <div class="panels">
        {PANELS.map((id) => {
          const panel = panelById(id);
          return (
            panel && <PanelBox key={id} panel={panel} variables={variables} wide={panel.kind !== "lines"} hideEmpty />
          );
        })}
      </div>
    </section>
  );
}

function runColumns(): Column<JobRunJson>[] {
  const now = serverNow();
  return [
    {
      id: "started",
      title: t("job.started"),
      cell: (one) => formatMoment(one.started_at, now, spoken.get().code),
      value: (one) => one.started_at,
    },
    {
      id: "run",
      title: t("slurm.runs"),
      number: true,
      cell: (one) => formatDuration(one.run_seconds),
      value: (one) => one.run_seconds,
    },
    { id: "gpus", title: t("fleet.gpus"), number: true, cell: (one) => String(one.gpus), value: (one) => one.gpus },
    {
      id: "hours",
      title: t("job.held"),
      number: true,
      cell: (one) => t("unit.gpu_hours", { hours: formatHours(one.gpu_hours) }),
      value: (one) => one.gpu_hours,
    },
    {
      id: "efficiency",
      title: t("job.share"),
      number: true,
      cell: (one) => formatValue(one.efficiency, "ratio"),
      value: (one) => one.efficiency ?? undefined,
    },
  ];
}

function gpuColumns(): Column<JobGpuJson>[] {
  return [
    {
      id: "node",
      title: t("column.node"),
      cell: (one) => (
        <a href={linkTo("node", one.node)}>
          <Name text={one.node} />
        </a>
      ),
      value: (one) => one.node,
    },
    {
      id: "gpu",
      title: t("column.gpu"),
      cell: (one) => <a href={linkTo("gpu", one.uuid)}>{one.gpu}</a>,
      value: (one) => one.gpu,
    },
    {
      id: "model",
      title: t("group.model"),
      cell: (one) => <Name text={[one.model, one.profile].filter(Boolean).join(" ")} />,
      value: (one) => one.model,
    },
    {
      id: "held",
      title: t("job.held"),
      number: true,
      cell: (one) => formatDuration(one.held_seconds),
      value: (one) => one.held_seconds,
    },
    {
      id: "busy",
      title: t("job.share"),
      number: true,
      cell: (one) => formatValue(one.busy_ratio, "ratio"),
      value: (one) => one.busy_ratio ?? undefined,
    },
    {
      id: "idle",
      title: t("job.longest_idle"),
      number: true,
      cell: (one) => formatDuration(one.longest_idle_seconds ?? undefined),
      value: (one) => one.longest_idle_seconds ?? undefined,
    },
    {
      id: "memory",
      title: t("job.peak"),
      number: true,
      cell: (one) => `${formatValue(one.memory_peak_bytes, "bytes")} / ${formatValue(one.memory_total_bytes, "bytes")}`,
      value: (one) => one.memory_peak_bytes ?? undefined,
    },
    {
      id: "energy",
      title: t("job.energy"),
      number: true,
      cell: (one) => (one.energy_joules === null ? "–" : `${formatHours(one.energy_joules / 3.6e6)} kWh`),
      value: (one) => one.energy_joules ?? undefined,
    },
  ];
}
