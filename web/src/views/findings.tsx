// Findings: what is wrong now, or was within some days, the most expensive first. Each names who can act, since when,
// what it costs and the next step, and opens its evidence at its time.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { getJson } from "../api";
import type { PastFindingsAnswer } from "../api-types";
import { toWords } from "../fleet";
import { costOf, isAboutOwner, nextText, ownerLabel, sumCosts, whyText } from "../finding-text";
import { ABSENT, formatDuration, formatHours, formatLength, formatMoment } from "../format";
import { t, tName, useLanguage } from "../i18n";
import { serverNow, type Finding, type LivePicture } from "../live";
import { AskedState, useAsked } from "../parts/asked";
import { FindingMark, nothingFound } from "../parts/attention";
import { SearchBox, Segments } from "../parts/controls";
import { CsvButton, DataTable, type Column } from "../parts/data-table";
import { Name } from "../parts/marks";
import { sentenceText } from "../report-text";
import { changeQuery, formatRoute, linkTo, route } from "../router";
import { useStore } from "../store";

export const PERIODS = ["now", "1d", "7d", "30d"] as const;
const EVERY_MS = 60_000;
const AROUND_SECONDS = 1800;

export function FindingsView({ picture }: { picture: LivePicture }): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const period = PERIODS.find((one) => one === query["since"]) ?? "now";
  const asked = useAsked(
    async (signal): Promise<PastFindingsAnswer | undefined> =>
      period === "now" ? undefined : getJson<PastFindingsAnswer>(`api/findings?since=${period}`, signal, 120_000),
    period,
    EVERY_MS,
  );
  const findings = period === "now" ? picture.findings : (asked.data?.findings ?? []);
  const shown = useMemo(() => filterFindings(findings, query), [findings, query]);
  const columns = findingColumns();
  const cost = sumCosts(shown, serverNow());
  return (
    <div class="data">
      <div class="head">
        <h1>{t("nav.findings")}</h1>
        <span class="soft" role="status">
          {t("findings.count", { count: shown.length })}
          {cost === undefined ? "" : `, ${t("unit.gpu_hours", { hours: formatHours(cost) })}`}
        </span>
      </div>
      <Filters period={period} findings={findings} query={query}>
        <CsvButton file="findings" rows={shown} columns={columns} />
      </Filters>
      {period !== "now" && <AskedState asked={asked} what={t("nav.findings")} />}
      {period !== "now" && asked.data && <Coverage answer={asked.data} />}
      {(period === "now" || asked.data !== undefined) && (
        <DataTable
          name={t("nav.findings")}
          rows={shown}
          columns={columns}
          keyOf={(one) => `${one.id}/${one.since ?? ""}`}
          sort="-cost"
          empty={findings.length ? t("findings.none_match") : nothingFound(picture)}
          rowClass={(one) => (one.severity === "critical" ? "severe" : "")}
        />
      )}
    </div>
  );
}

/** How much of the range is known, and the small findings that are added up: a list that hides them would lie. */
function Coverage({ answer }: { answer: PastFindingsAnswer }): JSX.Element {
  const { coverage, folded } = answer;
  return (
    <p class="soft small">
      {t("findings.coverage", { known: formatHours(coverage.known_gpu_hours), all: formatHours(coverage.gpu_hours) })}{" "}
      {folded.length > 0 &&
        t("findings.folded", {
          count: folded.reduce((sum, one) => sum + one.count, 0),
          hours: formatHours(folded.reduce((sum, one) => sum + one.cost_gpu_hours, 0)),
        })}{" "}
      {coverage.missing.map((one, place) => (
        <Name key={one} text={`${sentenceText(one, coverage.missing_keys[place])} `} />
      ))}
    </p>
  );
}

export function filterFindings(findings: readonly Finding[], query: Readonly<Record<string, string>>): Finding[] {
  const words = toWords(query["q"] ?? "");
  return findings.filter(
    (one) =>
      (!query["kind"] || one.kind === query["kind"]) &&
      (!query["severity"] || one.severity === query["severity"]) &&
      (!words.length || words.every((word) => textOf(one).includes(word))),
  );
}

const textOf = (one: Finding): string =>
  [one.node, one.kind, ownerLabel(one.owner), one.owner.user, one.why, whyText(one), ...one.uuids]
    .join("\n")
    .toLowerCase();

interface FilterProps {
  period: string;
  findings: readonly Finding[];
  query: Readonly<Record<string, string>>;
  children: JSX.Element;
}

function Filters({ period, findings, query, children }: FilterProps): JSX.Element {
  const kinds = [...new Set(findings.map((one) => one.kind))].sort();
  const severities = ["critical", "warning", "info"] as const;
  return (
    <div class="controls">
      <Segments
        label={t("findings.period")}
        queryKey="since"
        choices={PERIODS}
        chosen={period}
        title={(one) => (one === "now" ? t("findings.now") : t("time.last", { length: formatLength(one) }))}
      />
      <select
        aria-label={t("findings.severity")}
        value={query["severity"] ?? ""}
        onChange={(event) => changeQuery({ severity: event.currentTarget.value })}
      >
        <option value="">{t("findings.any_severity")}</option>
        {severities.map((one) => (
          <option key={one} value={one}>
            {tName("severity", one)}
          </option>
        ))}
      </select>
      <select
        aria-label={t("findings.kind")}
        value={query["kind"] ?? ""}
        onChange={(event) => changeQuery({ kind: event.currentTarget.value })}
      >
        <option value="">{t("findings.any_kind")}</option>
        {kinds.map((one) => (
          <option key={one} value={one}>
            {tName("kind", one)}
          </option>
        ))}
      </select>
      <SearchBox label={t("findings.search")} />
      {children}
    </div>
  );
}

/** From half an hour before it began until it ended, or now. */
function timesOf(finding: Finding): Record<string, string> {
  if (finding.since === null) return {};
  const from = String(Math.floor(finding.since - AROUND_SECONDS));
  return { from, to: finding.until === null ? "now" : String(Math.ceil(finding.until + AROUND_SECONDS)) };
}

function findingColumns(): Column<Finding>[] {
  const now = serverNow();
  return [
    {
      id: "severity",
      title: t("findings.severity"),
      cell: (one) => (
        <span class={`whole ${one.severity === "critical" ? "crit" : one.severity === "warning" ? "warn" : ""}`}>
          <FindingMark finding={one} />
          {tName("severity", one.severity)}
        </span>
      ),
      value: (one) => ["critical", "warning", "info"].indexOf(one.severity),
    },
    {
      id: "what",
      title: t("findings.what"),
      wide: true,
      cell: (one) => <What finding={one} />,
      value: (one) => `${one.node}: ${one.why}`,
    },
    {
      id: "who",
      title: t("attention.who"),
      cell: (one) => <Name text={ownerLabel(one.owner) || (isAboutOwner(one) ? t("sessions.no_name") : ABSENT)} />,
      value: (one) => ownerLabel(one.owner) || undefined,
    },
    {
      id: "since",
      title: t("attention.since"),
      cell: (one) => <Since finding={one} now={now} />,
      value: (one) => one.since ?? undefined,
    },
    {
      id: "cost",
      title: t("findings.cost"),
      number: true,
      cell: (one) => {
        const cost = costOf(one, now);
        return cost === undefined ? ABSENT : t("unit.gpu_hours", { hours: formatHours(cost) });
      },
      value: (one) => costOf(one, now),
    },
    {
      id: "next",
      title: t("attention.next"),
      wide: true,
      cell: (one) => <Name text={nextText(one)} />,
      value: (one) => one.next,
    },
    {
      id: "evidence",
      title: "",
      cell: (one) => (
        <a
          class="button"
          href={formatRoute({ view: "explore", name: "", query: { q: one.evidence, ...timesOf(one) } })}
        >
          {t("findings.evidence")}
        </a>
      ),
    },
  ];
}

function What({ finding }: { finding: Finding }): JSX.Element {
  const [uuid] = finding.uuids;
  const view =
    uuid !== undefined && finding.uuids.length === 1
      ? { view: "gpu", name: uuid }
      : { view: "node", name: finding.node };
  const href = finding.kind === "target_down" ? linkTo("settings") : formatRoute({ ...view, query: timesOf(finding) });
  return (
    <>
      {/* A finding about several nodes names none. */}
      {finding.node && (
        <a href={href}>
          <Name text={finding.node} />
        </a>
      )}{" "}
      <Name text={whyText(finding)} />
    </>
  );
}

function Since({ finding, now }: { finding: Finding; now: number }): JSX.Element {
  const language = useLanguage();
  if (finding.since === null) return <>{t("attention.unknown_time")}</>;
  const end = finding.until ?? now;
  return (
    <span
      title={`${formatMoment(finding.since, now, language)} – ${finding.until === null ? "" : formatMoment(finding.until, now, language)}`}
    >
      <span class="whole">{formatDuration(end - finding.since)}</span>{" "}
      <span class="soft whole">
        {finding.until === null
          ? formatMoment(finding.since, now, language)
          : t("findings.ended", { time: formatMoment(finding.until, now, language) })}
      </span>
    </span>
  );
}
