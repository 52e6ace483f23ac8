// The numbers of the GPU under the pointer or the keyboard's focus.
import type { JSX } from "preact";
import { arrange, holdersOf, leaves } from "../fleet";
import { ABSENT, formatValue, shortModel } from "../format";
import { t, tName } from "../i18n";
import { live } from "../live";
import { useStore } from "../store";
import { Name, stateName } from "./marks";

const WIDTH = 260;
const HEIGHT = 230;

export function Card({ anchor }: { anchor: HTMLElement }): JSX.Element | null {
  const { picture } = useStore(live);
  const uuid = anchor.dataset["uuid"];
  const cells = picture ? arrange({ ...picture, gpus: picture.gpus.filter((gpu) => gpu.uuid === uuid) }) : [];
  const cell = leaves(cells.flatMap((node) => node.cells))[0];
  if (!cell) return null;
  const { gpu } = cell;
  const box = anchor.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - WIDTH - 12));
  const below = box.bottom + 6 + HEIGHT < innerHeight;
  const style = below
    ? { left: `${left}px`, top: `${box.bottom + 6}px` }
    : { left: `${left}px`, bottom: `${innerHeight - box.top + 6}px` };
  const rows: [string, string][] = [
    [t("gpu.busy"), formatValue(gpu.busy, "ratio")],
    [t("gpu.sm"), formatValue(gpu.sm, "ratio")],
    [t("gpu.tensor"), formatValue(gpu.tensor, "ratio")],
    [t("gpu.memory"), `${formatValue(gpu.memory_used, "bytes")} / ${formatValue(gpu.memory_total, "bytes")}`],
    [t("gpu.power"), `${formatValue(gpu.power, "watts")} / ${formatValue(gpu.power_limit, "watts")}`],
    [t("gpu.temperature"), formatValue(gpu.temperature, "celsius")],
    [t("gpu.held_by"), holdersOf(cell).join(", ") || ABSENT],
  ];
  return (
    <div class="card" style={style} aria-hidden="true">
      <b>
        <Name text={gpu.node} /> · {t("gpu.gpu", { gpu: gpu.gpu })}
      </b>{" "}
      <span class="soft">
        {gpu.profile} <Name text={shortModel(gpu.model ?? "")} />
      </span>
      <div>
        {stateName(gpu.state)}
        {gpu.why ? `: ${tName("why", gpu.why)}` : ""}
      </div>
      <dl>
        {rows.map(([name, value]) => [
          <dt>{name}</dt>,
          <dd>
            <Name text={value} />
          </dd>,
        ])}
      </dl>
    </div>
  );
}
