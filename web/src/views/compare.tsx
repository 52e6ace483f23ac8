// GPUs beside each other: the same panels with one line for each of them. Which ones stands in the address.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { arrange, leaves } from "../fleet";
import { ABSENT, formatValue } from "../format";
import { t, useLanguage } from "../i18n";
import type { LiveGpu, LivePicture } from "../live";
import { panelsOf, toRegex, type Panel } from "../panels";
import { CsvButton, DataTable, type Column } from "../parts/data-table";
import { Name, stateName, Swatch } from "../parts/marks";
import { PanelBox } from "../parts/panel";
import { TimePicker } from "../parts/time-picker";
import { changeQuery, linkTo, route } from "../router";
import { useStore } from "../store";

const MOST = 16;

const nameOf = (gpu: LiveGpu): string => `${gpu.node} GPU ${gpu.gpu}`;

export function Compare({ picture }: { picture: LivePicture }): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const [typed, setTyped] = useState("");
  const chosen = (query["gpus"] ?? "").split(",").filter(Boolean).slice(0, MOST);
  const cells = useMemo(
    () => leaves(arrange(picture).flatMap((node) => node.cells)).map((cell) => cell.gpu),
    [picture],
  );
  const rows = chosen.flatMap((uuid) => cells.find((gpu) => gpu.uuid === uuid) ?? []);
  const uuids = toRegex([...chosen].sort());
  const variables = useMemo(() => ({ uuids, instance: "" }), [uuids]);
  const panels = useMemo(() => {
    const names = new Map(cells.map((gpu) => [gpu.uuid, nameOf(gpu)]));
    return panelsOf("node").map(
      (panel) => ({ ...panel, nameOf: (metric) => names.get(metric["uuid"] ?? "") }) as Panel,
    );
  }, [cells.length]);
  const add = (text: string): void => {
    const found = cells.find((gpu) => nameOf(gpu) === text);
    setTyped(found ? "" : text);
    if (found && !chosen.includes(found.uuid)) changeQuery({ gpus: [...chosen, found.uuid].join(",") }, true);
  };
  const columns = compareColumns((uuid) => changeQuery({ gpus: chosen.filter((one) => one !== uuid).join(",") }, true));
  return (
    <div class="data">
      <div class="head">
        <h1>{t("compare.title")}</h1>
      </div>
      <div class="controls">
        <input
          id="search"
          list="compare-gpus"
          value={typed}
          placeholder={t("compare.add")}
          aria-label={t("compare.add")}
          disabled={chosen.length >= MOST}
          onInput={(event) => add(event.currentTarget.value)}
        />
        <datalist id="compare-gpus">
          {cells.slice(0, 2000).map((gpu) => (
            <option key={gpu.uuid} value={nameOf(gpu)} />
          ))}
        </datalist>
        <CsvButton file="compare" rows={rows} columns={columns} />
      </div>
      <DataTable
        name={t("compare.title")}
        rows={rows}
        columns={columns}
        keyOf={(gpu) => gpu.uuid}
        empty={t("compare.none")}
      />
      {chosen.length > 0 && (
        <>
          <div class="section">
            <TimePicker />
          </div>
          <div class="panels">
            {panels.map((panel) => (
              <PanelBox key={panel.id} panel={panel} variables={variables} wide={panel.kind !== "lines"} hideEmpty />
            ))}
          </div>
        </>
      )}
    </div>
  );
}

function compareColumns(remove: (uuid: string) => void): Column<LiveGpu>[] {
  const number = (
    id: keyof LiveGpu & ("busy" | "sm" | "tensor" | "memory_used" | "power" | "temperature"),
    title: string,
    unit: "ratio" | "bytes" | "watts" | "celsius",
  ): Column<LiveGpu> => ({
    id,
    title,
    number: true,
    cell: (gpu) => formatValue(gpu[id], unit),
    value: (gpu) => gpu[id],
  });
  return [
    {
      id: "gpu",
      title: t("column.gpu"),
      wide: true,
      cell: (gpu) => (
        <a href={linkTo("gpu", gpu.uuid)}>
          <Name text={nameOf(gpu)} />
        </a>
      ),
      value: nameOf,
    },
    {
      id: "model",
      title: t("group.model"),
      cell: (gpu) => <Name text={gpu.model ?? ABSENT} />,
      value: (gpu) => gpu.model,
    },
    {
      id: "state",
      title: t("column.state"),
      cell: (gpu) => (
        <span class="whole">
          <Swatch state={gpu.state} /> {stateName(gpu.state)}
        </span>
      ),
      value: (gpu) => gpu.state,
    },
    number("busy", t("gpu.busy"), "ratio"),
    number("sm", t("gpu.sm"), "ratio"),
    number("tensor", t("gpu.tensor"), "ratio"),
    number("memory_used", t("gpu.memory"), "bytes"),
    number("power", t("gpu.power"), "watts"),
    number("temperature", t("gpu.temperature"), "celsius"),
    { id: "remove", title: "", cell: (gpu) => <button onClick={() => remove(gpu.uuid)}>{t("explore.remove")}</button> },
  ];
}
