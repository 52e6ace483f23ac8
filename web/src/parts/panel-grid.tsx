// The panels of one subject, a GPU or a node, with its errors marked on every time axis.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Mark } from "../charts/plot";
import { eventsOf } from "../charts/rows";
import { panelById, panelsOf, type Panel, type Variables } from "../panels";
import { PanelBox, useAnswer } from "./panel";

const MARKS_WIDTH = 900;

/** Errors as marks on every panel's time axis. */
export function useMarks(panelId: string, variables: Variables): readonly Mark[] {
  const panel = panelById(panelId);
  if (!panel) throw new Error(`no panel ${panelId}`);
  const { asked } = useAnswer(panel, variables, MARKS_WIDTH);
  return useMemo(() => (asked.answer ? eventsOf(panel, asked.answer.results, asked.answer.span) : []), [asked.answer]);
}

interface GridProps {
  view: Parameters<typeof panelsOf>[0];
  variables: Variables;
  marks: readonly Mark[];
  /** Whether a panel without data is left out instead of saying so. */
  hideEmpty(panel: Panel): boolean;
}

export function PanelGrid({ view, variables, marks, hideEmpty }: GridProps): JSX.Element {
  return (
    <div class="panels">
      {panelsOf(view).map((panel) => (
        <PanelBox
          key={panel.id}
          panel={panel}
          variables={variables}
          {...(panel.kind === "events" ? {} : { marks })}
          wide={panel.kind !== "lines"}
          hideEmpty={hideEmpty(panel)}
        />
      ))}
    </div>
  );
}
