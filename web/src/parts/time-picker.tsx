// Which time is looked at: relative or absolute, moved and zoomed, following now or standing still.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { formatLength, formatMoment } from "../format";
import { t, useLanguage } from "../i18n";
import { serverNow } from "../live";
import { useStore } from "../store";
import { follows, pan, RELATIVE, relativeLength, zoom, type Span } from "../time";
import { refresh, showRange, showSpan, timeline } from "../timeline";

export const actions = {
  back: (): void => showSpan(pan(timeline.get().span, -0.5, serverNow())),
  forth: (): void => showSpan(pan(timeline.get().span, 0.5, serverNow())),
  closer: (): void => showSpan(zoom(timeline.get().span, 0.5, serverNow())),
  wider: (): void => showSpan(zoom(timeline.get().span, 2, serverNow())),
  follow: (): void => {
    const { range, span } = timeline.get();
    if (follows(range)) showSpan(span);
    else showRange({ from: `now-${Math.max(Math.round(span.end - span.start), 10)}s`, to: "now" });
  },
};

export function TimePicker(): JSX.Element {
  const language = useLanguage();
  const { range, span } = useStore(timeline);
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return undefined;
    const close = (event: Event): void => {
      if (event instanceof KeyboardEvent ? event.key === "Escape" : !box.current?.contains(event.target as Node))
        setOpen(false);
    };
    addEventListener("pointerdown", close);
    addEventListener("keydown", close);
    return () => {
      removeEventListener("pointerdown", close);
      removeEventListener("keydown", close);
    };
  }, [open]);
  const length = relativeLength(range);
  const now = serverNow();
  const name = length
    ? t("time.last", { length: formatLength(readableLength(length)) })
    : `${formatMoment(span.start, now, language)} – ${formatMoment(span.end, now, language)}`;
  return (
    <div class="times" role="group" aria-label={t("time.range")}>
      <button onClick={actions.back} aria-label={t("time.back")}>
        ‹
      </button>
      <div class="anchor" ref={box}>
        <button aria-expanded={open} aria-haspopup="dialog" onClick={() => setOpen(!open)} data-range>
          {name}
        </button>
        {open && <Choices span={span} length={length} done={() => setOpen(false)} />}
      </div>
      <button onClick={actions.forth} aria-label={t("time.forth")} disabled={follows(range)}>
        ›
      </button>
      <button onClick={actions.closer} aria-label={t("time.closer")}>
        +
      </button>
      <button onClick={actions.wider} aria-label={t("time.wider")}>
        −
      </button>
      <button aria-pressed={follows(range)} onClick={actions.follow}>
        {t("time.follow")}
      </button>
      <button onClick={refresh}>{t("time.refresh")}</button>
    </div>
  );
}

/** `90s` and `3600s`, which "follow now" leaves behind, as people say them. */
function readableLength(text: string): string {
  const match = /^(\d+)s$/.exec(text);
  const seconds = Number(match?.[1] ?? 0);
  if (!seconds || seconds % 60) return text;
  return seconds % 3600 ? `${seconds / 60}m` : `${seconds / 3600}h`;
}

function Choices({ span, length, done }: { span: Span; length: string | undefined; done: () => void }): JSX.Element {
  const [problem, setProblem] = useState(false);
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const start = Date.parse(String(form.get("start"))) / 1000;
    const end = Date.parse(String(form.get("end"))) / 1000;
    if (!(end > start)) return setProblem(true);
    showSpan({ start, end });
    done();
  };
  return (
    <div class="popover" role="dialog" aria-label={t("time.range")}>
      <div class="relative">
        {RELATIVE.map((one) => (
          <button
            key={one}
            aria-pressed={one === length}
            onClick={() => {
              showRange({ from: `now-${one}`, to: "now" });
              done();
            }}
          >
            {formatLength(one)}
          </button>
        ))}
      </div>
      <form onSubmit={submit}>
        <label>
          {t("time.from")}
          <input type="datetime-local" name="start" step="1" defaultValue={toLocal(span.start)} required />
        </label>
        <label>
          {t("time.to")}
          <input type="datetime-local" name="end" step="1" defaultValue={toLocal(span.end)} required />
        </label>
        {problem && (
          <p class="crit small" role="alert">
            {t("time.wrong")}
          </p>
        )}
        <button type="submit">{t("time.show")}</button>
      </form>
    </div>
  );
}

/** What a datetime-local input wants: local time without a zone. */
function toLocal(seconds: number): string {
  const moment = new Date(seconds * 1000);
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
