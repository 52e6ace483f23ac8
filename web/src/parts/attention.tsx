// The list of findings: each entry says what and where, who can act, since when, and the next step.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatDuration, formatHours, formatMoment, localNumber } from "../format";
import { costOf, isAboutOwner, nextText, ownerLabel, whyText } from "../finding-text";
import { t, useLanguage } from "../i18n";
import { serverNow, type Finding, type GpuState, type LivePicture } from "../live";
import { linkTo } from "../router";
import { Name, Swatch } from "./marks";

/** On a phone the map must not be pages away. */
const FEW = matchMedia("(max-width: 640px)").matches ? 2 : 6;

/** The colour beside a finding is that of the GPUs it is about. */
const LOOKS: Readonly<Record<string, GpuState>> = {
  gpu_lost: "lost",
  gpus_missing: "lost",
  node_down: "gone",
  target_down: "gone",
  node_stale: "stale",
  source_down: "stale",
  source_slow: "stale",
  throttled: "throttled",
  hot: "throttled",
  memory_hot: "throttled",
  power_limit_low: "throttled",
  held_idle: "held",
  only_some_work: "held",
  allocated_unused: "held",
  orphan_memory: "held",
  hung: "held",
  unused: "idle",
  waits_for_rank: "busy",
  waits_for_disk: "busy",
  waits_for_network: "busy",
  waits_for_data: "busy",
  long_running: "busy",
  xid_application: "busy",
};

/** A kind without a state of its own is marked by how urgent it is; one that is not urgent has no mark. */
const lookOf = ({ kind, severity }: Finding): GpuState | undefined =>
  LOOKS[kind] ?? (severity === "critical" ? "sick" : severity === "warning" ? "throttled" : undefined);

export function FindingMark({ finding }: { finding: Finding }): JSX.Element | null {
  const look = lookOf(finding);
  return look === undefined ? null : (
    <>
      <Swatch state={look} />{" "}
    </>
  );
}

/** That there is no finding is only said of checks that were evaluated. */
export function nothingFound({ not_known, counts }: LivePicture): string {
  if (not_known) return t("attention.not_known", { count: not_known });
  const answering = counts.units - (counts.states["lost"] ?? 0) - (counts.states["gone"] ?? 0);
  return t("attention.none", { count: answering });
}

export function Attention({ picture }: { picture: LivePicture }): JSX.Element {
  const { findings } = picture;
  const [all, setAll] = useState(false);
  const shown = all ? findings : findings.slice(0, FEW);
  return (
    <section class="attention" aria-labelledby="attention-title">
      <header>
        <h2 id="attention-title">{t("attention.title")}</h2>
        {findings.length > 0 && <span class="soft">{localNumber(findings.length, 0)}</span>}
      </header>
      {findings.length === 0 && <p class="soft">{nothingFound(picture)}</p>}
      <Findings findings={shown} heading="h3" />
      {findings.length > FEW && (
        <button onClick={() => setAll(!all)}>
          {all ? t("attention.less") : t("attention.more", { count: findings.length })}
        </button>
      )}
    </section>
  );
}

/** `heading` is h3 below a heading of the list, or readers of headings would miss a level. */
export function Findings({
  findings,
  heading = "h2",
}: {
  findings: readonly Finding[];
  heading?: "h2" | "h3";
}): JSX.Element | null {
  if (!findings.length) return null;
  return (
    <ul class="findings">
      {findings.map((finding) => (
        <Entry key={finding.id} finding={finding} heading={heading} />
      ))}
    </ul>
  );
}

function Entry({ finding, heading: Heading }: { finding: Finding; heading: "h2" | "h3" }): JSX.Element {
  const language = useLanguage();
  const owner = ownerLabel(finding.owner);
  const why = whyText(finding);
  // Most sentences about use name the owner. Of a lost GPU it matters also that nobody is known.
  const showsOwner = owner ? !why.includes(owner) : isAboutOwner(finding);
  const [uuid] = finding.uuids;
  const where = uuid !== undefined && finding.uuids.length === 1 ? linkTo("gpu", uuid) : linkTo("node", finding.node);
  const now = serverNow();
  const cost = costOf(finding, now);
  return (
    <li class={finding.severity === "critical" ? "finding severe" : "finding"} data-kind={finding.kind}>
      <Heading class="title">
        <FindingMark finding={finding} />
        {finding.kind === "target_down" ? (
          <Name text={finding.node} />
        ) : (
          <a href={where}>
            <Name text={finding.node} />
          </a>
        )}{" "}
        <Name text={why} />
      </Heading>
      <dl>
        {showsOwner && [
          <dt>{t("attention.who")}</dt>,
          <dd>
            <Name text={owner || t("sessions.no_name")} />
          </dd>,
        ]}
        <dt>{t("attention.since")}</dt>
        <dd>
          {finding.since === null
            ? t("attention.unknown_time")
            : `${formatDuration(now - finding.since)} (${formatMoment(finding.since, now, language)})`}
        </dd>
        {cost !== undefined && [
          <dt>{t("findings.cost")}</dt>,
          <dd>{t("unit.gpu_hours", { hours: formatHours(cost) })}</dd>,
        ]}
        <dt>{t("attention.next")}</dt>
        <dd>
          <Name text={nextText(finding)} />
        </dd>
      </dl>
    </li>
  );
}
