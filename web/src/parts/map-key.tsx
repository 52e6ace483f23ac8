// What the marks and colours of the fleet map mean.
import type { JSX } from "preact";
import type { Holders, Measure } from "../fleet";
import { localNumber } from "../format";
import { t } from "../i18n";
import { changeQuery } from "../router";
import { Name } from "./marks";

/** What the marks in a cell and beside a node mean. */
export function MapKey({ size, measure }: { size: string; measure: Measure }): JSX.Element {
  if (size === "small" || size === "tiny") return <p class="key soft small">{t("fleet.key_fill")}</p>;
  if (size !== "large" || measure !== "busy") return <p class="key soft small">{t("fleet.key_ticks")}</p>;
  return (
    <p class="key soft small">
      <span class="truth" aria-hidden="true">
        <i />
        <i />
      </span>
      {t("fleet.key_bars")}
    </p>
  );
}

export function HolderLegend({ holders }: { holders: Holders }): JSX.Element {
  return (
    <div class="key legend" role="group" aria-label={t("fleet.holders")}>
      {holders.shown.map(({ name, count, colour }) => (
        <button key={name} onClick={() => changeQuery({ q: name })}>
          <span class="holder" data-holder={String(colour)} aria-hidden="true" />
          <Name text={name} /> <span class="soft">{localNumber(count, 0)}</span>
        </button>
      ))}
      {holders.others > 0 && (
        <span class="soft small">
          <span class="holder" data-holder="0" aria-hidden="true" /> {t("fleet.others", { count: holders.others })}
        </span>
      )}
    </div>
  );
}
