// Under the map of a small fleet there is room: the last hour of its GPUs and who is on them, without a click. This is
// what somebody sees who starts gpuscope on their own machine.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { t } from "../i18n";
import type { LivePicture } from "../live";
import { panelById, toRegex } from "../panels";
import { PanelBox } from "./panel";
import { SessionTable } from "./session-table";

const SHOWN = ["node_levels", "node_memory", "node_power"];

export function FewGpus({ picture }: { picture: LivePicture }): JSX.Element {
  const uuids = toRegex(picture.gpus.map((gpu) => gpu.uuid).sort());
  const variables = useMemo(() => ({ uuids }), [uuids]);
  return (
    <>
      <div class="panels">
        {SHOWN.map((id) => {
          const panel = panelById(id);
          return panel && <PanelBox key={id} panel={panel} variables={variables} wide={panel.kind !== "lines"} />;
        })}
      </div>
      <section class="section">
        <h2>{t("sessions.now")}</h2>
        <SessionTable sessions={picture.sessions} />
      </section>
    </>
  );
}
