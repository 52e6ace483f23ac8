// Numbers of one thing, each with a meter where it is a share; and the view of a thing that is not there.
import type { ComponentChildren, JSX } from "preact";
import { ABSENT } from "../format";
import { t } from "../i18n";
import { linkTo } from "../router";
import { Name } from "./marks";

export function Facts({ children }: { children: ComponentChildren }): JSX.Element {
  return <dl class="facts">{children}</dl>;
}

/** Characters; a longer value is written smaller. */
const LONG = 20;

interface FactProps {
  name: string;
  value: string;
  of?: string;
  level?: number | undefined;
}

export function Fact({ name, value, of, level }: FactProps): JSX.Element {
  return (
    <div class={value.length > LONG ? "long" : ""}>
      <dt>{name}</dt>
      <dd {...(value === ABSENT ? { title: t("gpu.absent") } : {})}>
        <Name text={value} /> {of && of !== ABSENT && <small>/ {of}</small>}
        {level !== undefined && (
          <div class="meter">
            <i style={{ "--v": `${Math.round(level * 100)}%` }} />
          </div>
        )}
      </dd>
    </div>
  );
}

export function Missing({ title, name }: { title: string; name: string }): JSX.Element {
  return (
    <div class="blank">
      <h1>{title}</h1>
      <p class="mono">
        <Name text={name} />
      </p>
      <p>
        <a href={linkTo("fleet")}>{t("nav.fleet")}</a>
      </p>
    </div>
  );
}
