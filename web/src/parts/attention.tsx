// What needs somebody: each entry says what and where, who, since when, and the one next step.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { SEVERE, type Finding } from "../findings";
import { formatDuration, formatIndices, formatMoment } from "../format";
import { t, tName, useLanguage, type Key } from "../i18n";
import { serverNow, type GpuState } from "../live";
import { linkTo } from "../router";
import { en } from "../i18n/en";
import { Name, Swatch } from "./marks";

/** On a phone the map must not be pages away. */
const FEW = matchMedia("(max-width: 640px)").matches ? 2 : 6;
const STATE_OF: Record<Finding["kind"], GpuState> = {
  lost: "lost",
  missing: "lost",
  node_gone: "gone",
  node_never: "gone",
  target_gone: "gone",
  node_stale: "stale",
  source_down: "stale",
  sick: "sick",
  throttled: "throttled",
  lopsided: "held",
  held: "held",
};

/** Of these the reason is somebody else's text, and nobody holds them. */
const GONE: ReadonlySet<Finding["kind"]> = new Set(["node_gone", "node_never", "target_gone"]);

/** The most special advice there is for a finding: by XID, by reason, or by kind. */
export function stepKey(finding: Finding): Key {
  const word = finding.why.replace(/^XID (\d+)$/, "xid.$1").replace(/^PCIe .*/, "pcie");
  const special = `step.${finding.kind}.${word}`;
  return special in en ? (special as Key) : `step.${finding.kind}`;
}

export function Attention({ findings, gpus }: { findings: Finding[]; gpus: number }): JSX.Element {
  const [all, setAll] = useState(false);
  const shown = all ? findings : findings.slice(0, FEW);
  return (
    <section class="attention" aria-labelledby="attention-title">
      <header>
        <h2 id="attention-title">{t("attention.title")}</h2>
        {findings.length > 0 && <span class="soft">{findings.length}</span>}
      </header>
      {findings.length === 0 && <p class="soft">{t("attention.none", { count: gpus })}</p>}
      <Findings findings={shown} />
      {findings.length > FEW && (
        <button onClick={() => setAll(!all)}>
          {all ? t("attention.less") : t("attention.more", { count: findings.length })}
        </button>
      )}
    </section>
  );
}

export function Findings({ findings }: { findings: readonly Finding[] }): JSX.Element | null {
  if (!findings.length) return null;
  return (
    <ul class="findings">
      {findings.map((finding) => (
        <Entry key={`${finding.kind}/${finding.node}/${finding.gpus.join()}/${finding.why}`} finding={finding} />
      ))}
    </ul>
  );
}

function Entry({ finding }: { finding: Finding }): JSX.Element {
  const language = useLanguage();
  const gpus = formatIndices(finding.gpus);
  // Of a GPU that is gone nobody can say who was on it; that is not the same as nobody.
  const none = finding.kind === "lost" || finding.kind === "missing" ? t("sessions.no_name") : t("attention.nobody");
  const who = finding.who.join(", ") || none;
  const gone = GONE.has(finding.kind);
  const where = finding.uuids.length === 1 ? linkTo("gpu", finding.uuids[0]) : linkTo("node", finding.node);
  const now = serverNow();
  return (
    <li class={SEVERE.has(finding.kind) ? "finding severe" : "finding"}>
      <h3>
        <Swatch state={STATE_OF[finding.kind]} />
        {finding.kind === "target_gone" ? (
          <Name text={finding.node} />
        ) : (
          <a href={where}>
            <Name text={finding.node} />
          </a>
        )}
        <span>{t(`finding.${finding.kind}`, { gpus, count: finding.count, why: tName("why", finding.why) })}</span>
      </h3>
      <dl>
        <dt>{gone ? t("attention.why") : t("attention.who")}</dt>
        <dd>
          <Name text={gone ? finding.why || t("sessions.no_name") : who} />
        </dd>
        <dt>{t("attention.since")}</dt>
        <dd>
          {finding.since === undefined
            ? t("attention.unknown_time")
            : `${formatDuration(now - finding.since)} (${formatMoment(finding.since, now, language)})`}
        </dd>
        <dt>{t("attention.next")}</dt>
        <dd>
          <bdi>{t(stepKey(finding), { gpus, who })}</bdi>
        </dd>
      </dl>
    </li>
  );
}
