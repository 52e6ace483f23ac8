// One panel: asks its own queries, shows its own trouble, and tells what it asked. Nothing here knows GPUs; the panels'
// definition does. A panel out of sight asks nothing.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { errorText, queryRange, type Series } from "../api";
import type { Mark } from "../charts/plot";
import { panelHelp, panelTitle, t, useLanguage } from "../i18n";
import { live } from "../live";
import { fillExpression, type Panel, type Variables } from "../panels";
import { linkTo } from "../router";
import { useStore } from "../store";
import { alignSpan, chooseStep, type Span } from "../time";
import { timeline, windowsFor } from "../timeline";
import { ChartBody } from "./chart-body";
import { useInTurn } from "./in-turn";

export interface Answer {
  span: Span;
  step: number;
  /** One list of series for each query of the panel. */
  results: Series[][];
}
export interface Asked {
  answer?: Answer;
  problem?: string;
  loading: boolean;
}

const AXES = 72;

interface PanelProps {
  panel: Panel;
  variables: Variables;
  marks?: readonly Mark[];
  wide?: boolean;
  /** Leaves the panel out when the card has no such numbers at all. */
  hideEmpty?: boolean;
}

const NO_MARKS: readonly Mark[] = [];

export function PanelBox({
  panel,
  variables,
  marks = NO_MARKS,
  wide = false,
  hideEmpty = false,
}: PanelProps): JSX.Element | null {
  useLanguage();
  const host = useRef<HTMLElement>(null);
  const { width, seen } = useSize(host);
  const { asked, expressions } = useAnswer(panel, variables, seen ? width : 0);
  const [told, setTold] = useState(false);
  const { empty } = useStore(timeline);
  const gone = useStore(live).status === "gone";
  const silent = asked.answer !== undefined && asked.answer.results.every((series) => !series.length);
  if (hideEmpty && silent && !asked.problem && !empty) return null;
  const classes = ["panel", wide && "wide", asked.loading && "loading", gone && "old"].filter(Boolean).join(" ");
  return (
    <section class={classes} ref={host} data-panel={panel.id} aria-label={panelTitle(panel.id)}>
      <header>
        <h2 class="title">{panelTitle(panel.id)}</h2>
        <button class="bare" aria-expanded={told} onClick={() => setTold(!told)}>
          {t("panel.about")}
        </button>
        <a class="button bare" href={linkTo("explore", "", { q: expressions[0] ?? "" })}>
          {t("panel.explore")}
        </a>
      </header>
      {told && (
        <div class="about">
          {panelHelp(panel.id)}
          {expressions.map((one) => (
            <a key={one} href={linkTo("explore", "", { q: one })}>
              <code>{one}</code>
            </a>
          ))}
        </div>
      )}
      <Body panel={panel} asked={asked} width={width} marks={marks} silent={silent} empty={empty ?? false} />
    </section>
  );
}

interface BodyProps {
  panel: Panel;
  asked: Asked;
  width: number;
  marks: readonly Mark[];
  silent: boolean;
  empty: boolean;
}

function Body({ panel, asked, width, marks, silent, empty }: BodyProps): JSX.Element {
  if (asked.problem) {
    return (
      <div class="message failed" role="alert">
        <bdi>{t("panel.failed", { problem: asked.problem })}</bdi>
      </div>
    );
  }
  if (!asked.answer) return <div class="message">{empty ? t("panel.no_history") : t("panel.loading")}</div>;
  if (silent && panel.kind !== "events") {
    return <div class="message">{empty ? t("panel.no_history") : t("panel.absent")}</div>;
  }
  return <ChartBody panel={panel} answer={asked.answer} width={width - 22} marks={marks} />;
}

function useSize(host: { current: HTMLElement | null }): { width: number; seen: boolean } {
  const [size, setSize] = useState({ width: 0, seen: false });
  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const resizing = new ResizeObserver(() => setSize((old) => ({ ...old, width: element.clientWidth })));
    const watching = new IntersectionObserver(
      (entries) => {
        if (entries.some((entry) => entry.isIntersecting)) setSize((old) => ({ ...old, seen: true }));
      },
      { rootMargin: "300px" },
    );
    resizing.observe(element);
    watching.observe(element);
    return () => {
      resizing.disconnect();
      watching.disconnect();
    };
  }, []);
  return size;
}

export function useAnswer(panel: Panel, variables: Variables, width: number): { asked: Asked; expressions: string[] } {
  const { range, span, interval } = useStore(timeline);
  const [asked, setAsked] = useState<Asked>({ loading: false });
  const ready = width > 0 && interval !== undefined;
  const step = chooseStep(span.end - span.start, Math.max(width - AXES, 100));
  const windows = windowsFor(step, interval ?? step);
  const expressions = panel.queries.map((query) => fillExpression(query.expr, { ...variables, ...windows }));
  const key = ready ? [range.from, range.to, step, ...expressions].join("\n") : "";
  useInTurn(key, span, (signal) => {
    const aligned = alignSpan(span, step);
    setAsked((old) => ({ ...old, loading: true }));
    return Promise.all(expressions.map((one) => queryRange(one, aligned.start, aligned.end, step, signal)))
      .then((results) => setAsked({ answer: { span: aligned, step, results }, loading: false }))
      .catch((error: unknown) => {
        if (signal.aborted) return;
        const problem = errorText(error);
        // While the server is gone the page says so once; the last picture stays in every panel.
        setAsked((old) =>
          old.answer && live.get().status === "gone" ? { ...old, loading: false } : { problem, loading: false },
        );
      });
  });
  return { asked, expressions };
}
