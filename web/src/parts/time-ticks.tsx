// A time axis under a plot that has none of its own: round moments of the local clock, at their places.
import type { JSX } from "preact";
import { formatTick } from "../format";
import { useLanguage } from "../i18n";
import { ticksOf, type Span } from "../time";

/** `most` labels at the most: a narrow plot has room for few. */
export function TimeTicks({ span, most = 8 }: { span: Span; most?: number }): JSX.Element {
  const language = useLanguage();
  const { ticks, step } = ticksOf(span, most);
  return (
    <div class="ticks small soft" aria-hidden="true">
      {ticks.map((at) => {
        const share = (at - span.start) / (span.end - span.start);
        // Near the end there is no room to the right of the tick; on a phone that begins earlier.
        const place = share > 0.94 ? "end late" : share > 0.85 ? "late" : "";
        return (
          <span key={at} class={place} style={{ left: `${share * 100}%` }}>
            {formatTick(at, step, language)}
          </span>
        );
      })}
    </div>
  );
}
