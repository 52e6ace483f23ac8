// Kubernetes: namespaces and pods, what each was given against what it uses, and GPUs that pods share.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { queryInstant, type InstantSample } from "../api";
import { toWords } from "../fleet";
import { ABSENT, formatDuration, formatValue } from "../format";
import { t, useLanguage } from "../i18n";
import { ALLOCATIONS, HOUR_USE, isUnused, namespaceRows, podRows, type NamespaceRow, type PodRow } from "../kubernetes";
import { serverNow, type LivePicture } from "../live";
import { AskedState, Blank, useAsked } from "../parts/asked";
import { SearchBox } from "../parts/controls";
import { CsvButton, DataTable, type Column } from "../parts/data-table";
import { Name, Swatch } from "../parts/marks";
import { SpreadBar } from "../parts/spread-bar";
import { changeQuery, linkTo, route } from "../router";
import { useStore } from "../store";

const EVERY_MS = 30_000;

async function fetchUse(signal: AbortSignal): Promise<{ allocations: InstantSample[]; hours: InstantSample[] }> {
  const ask = async (query: string): Promise<InstantSample[]> => {
    const data = await queryInstant(query, serverNow(), signal);
    return data.resultType === "vector" ? data.result : [];
  };
  const [allocations, hours] = await Promise.all([ask(ALLOCATIONS), ask(HOUR_USE)]);
  return { allocations, hours };
}

export function Kubernetes({ picture }: { picture: LivePicture }): JSX.Element {
  useLanguage();
  const { query } = useStore(route);
  const asked = useAsked(fetchUse, "", EVERY_MS);
  const pods = useMemo(
    () => podRows(picture, asked.data?.allocations ?? [], asked.data?.hours ?? []),
    [picture, asked.data],
  );
  const namespaces = useMemo(() => namespaceRows(pods), [pods]);
  const words = toWords(query["q"] ?? "");
  const shown = pods.filter(
    (pod) =>
      (!query["ns"] || pod.namespace === query["ns"]) &&
      words.every((word) =>
        `${pod.namespace}/${pod.pod} ${pod.nodes.join(" ")} ${pod.containers.join(" ")}`.toLowerCase().includes(word),
      ),
  );
  if (!pods.length && asked.data)
    return (
      <Blank title={t("kubernetes.none")}>
        <p>{t("kubernetes.none_help")}</p>
        <code>gpuscope doctor</code>
      </Blank>
    );
  const columns = podColumns();
  const shared = new Set(pods.flatMap((pod) => pod.gpus.filter((one) => one.shared).map((one) => one.uuid)));
  return (
    <div class="data">
      <div class="head">
        <h1>{t("nav.kubernetes")}</h1>
        <span class="soft" role="status">
          {[
            t("kubernetes.namespace_count", { count: namespaces.length }),
            t("kubernetes.pod_count", { count: pods.length }),
            t("kubernetes.shared_count", { count: shared.size }),
          ].join(" · ")}
        </span>
      </div>
      <AskedState asked={asked} what="Kubernetes" />
      <section class="section">
        <h2>{t("kubernetes.namespaces")}</h2>
        <DataTable
          name={t("kubernetes.namespaces")}
          rows={namespaces}
          columns={namespaceColumns()}
          keyOf={(one) => one.namespace}
          sort="-held"
          sortKey="nsort"
          empty=""
        />
      </section>
      <section class="section">
        <h2>{t("kubernetes.pods")}</h2>
        <div class="controls">
          <SearchBox label={t("kubernetes.search")} />
          {query["ns"] && (
            <button onClick={() => changeQuery({ ns: "" })}>
              <Name text={query["ns"]} /> ✕
            </button>
          )}
          <CsvButton file="pods" rows={shown} columns={columns} />
        </div>
        <DataTable
          name={t("kubernetes.pods")}
          rows={shown}
          columns={columns}
          keyOf={(one) => `${one.namespace}/${one.pod}`}
          sort="-held"
          empty={t("kubernetes.none_match")}
        />
      </section>
    </div>
  );
}

function namespaceColumns(): Column<NamespaceRow>[] {
  return [
    {
      id: "namespace",
      title: t("kubernetes.namespace"),
      cell: (one) => (
        <a href={linkTo("kubernetes", "", { ns: one.namespace })}>
          <Name text={one.namespace || t("sessions.no_name")} />
        </a>
      ),
      value: (one) => one.namespace,
    },
    {
      id: "pods",
      title: t("kubernetes.pods"),
      number: true,
      cell: (one) => String(one.pods.length),
      value: (one) => one.pods.length,
    },
    {
      id: "given",
      title: t("kubernetes.given"),
      number: true,
      cell: (one) => (one.given === undefined ? "–" : String(one.given)),
      value: (one) => one.given,
    },
    {
      id: "held",
      title: t("kubernetes.held"),
      number: true,
      cell: (one) => String(one.held),
      value: (one) => one.held,
    },
    {
      id: "working",
      title: t("kubernetes.working"),
      number: true,
      cell: (one) => String(one.working),
      value: (one) => one.working,
    },
    {
      id: "unused",
      title: t("kubernetes.unused"),
      number: true,
      cell: (one) => <span class={one.unused ? "warn" : ""}>{one.unused}</span>,
      value: (one) => one.unused,
    },
  ];
}

function podColumns(): Column<PodRow>[] {
  const now = serverNow();
  return [
    {
      id: "pod",
      title: t("group.pod"),
      wide: true,
      cell: (one) => <Name text={`${one.namespace}/${one.pod}`} />,
      value: (one) => `${one.namespace}/${one.pod}`,
    },
    {
      id: "container",
      title: t("group.container"),
      cell: (one) => <Name text={one.containers.join(", ") || "–"} />,
      value: (one) => one.containers.join(" "),
    },
    {
      id: "node",
      title: t("column.node"),
      cell: (one) =>
        one.nodes.map((node) => (
          <a key={node} href={linkTo("node", node)}>
            <Name text={node} />{" "}
          </a>
        )),
      value: (one) => one.nodes.join(" "),
    },
    {
      id: "held",
      title: t("kubernetes.gpus"),
      wide: true,
      cell: (one) => <Gpus pod={one} />,
      value: (one) => one.gpus.length,
      number: false,
    },
    {
      id: "used",
      title: t("kubernetes.used"),
      number: true,
      cell: (one) => (
        <span class={one.gpus.some(isUnused) ? "warn" : ""}>{`${one.working} / ${one.given ?? ABSENT}`}</span>
      ),
      value: (one) => one.working,
    },
    {
      id: "hour",
      title: t("column.hour"),
      wide: true,
      cell: (one) => <SpreadBar values={one.hour} />,
      value: (one) => one.hour[Math.floor((one.hour.length - 1) / 2)],
    },
    {
      id: "memory",
      title: t("column.memory"),
      number: true,
      cell: (one) => formatValue(one.memory, "bytes"),
      value: (one) => one.memory,
    },
    {
      id: "since",
      title: t("column.since"),
      number: true,
      cell: (one) => formatDuration(one.since === undefined ? undefined : now - one.since),
      value: (one) => (one.since === undefined ? undefined : now - one.since),
    },
  ];
}

function Gpus({ pod }: { pod: PodRow }): JSX.Element {
  return (
    <span class="gpus">
      {pod.gpus.map(({ uuid, gpu, shared }) =>
        gpu ? (
          <a key={uuid} class="chip" href={linkTo("gpu", uuid)} title={[gpu.node, gpu.profile ?? ""].join(" ")}>
            <Swatch state={gpu.state} /> {gpu.gpu}
            {shared && <small class="soft"> {t("kubernetes.shared_short")}</small>}
          </a>
        ) : (
          <span key={uuid} class="chip">
            <Name text={uuid.slice(0, 12)} />
          </span>
        ),
      )}
      {pod.gpus.some((one) => one.shared) && <span class="visually-hidden">{t("kubernetes.shared")}</span>}
    </span>
  );
}
