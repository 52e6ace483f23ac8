// Pods and namespaces: which GPUs each was given, and how much of them it uses. In: the live picture, the kubelets'
// allocations, and the counters of the last hour. Out: rows. A share that is not known is absent, not 0.
import type { InstantSample } from "./api";
import { groupBy } from "./fleet";
import { naturalOrder } from "./format";
import type { LiveGpu, LivePicture, LiveSession } from "./live";

export interface PodGpu {
  uuid: string;
  gpu: LiveGpu | undefined;
  /** Part of a GPU that several pods were given: the device plugin's replica, or another pod on it. */
  shared: boolean;
  sessions: LiveSession[];
}
export interface PodRow {
  namespace: string;
  pod: string;
  containers: string[];
  nodes: string[];
  /** By the kubelet; undefined where no kubelet told. */
  given: number | undefined;
  gpus: PodGpu[];
  /** GPUs on which it works now. */
  working: number;
  memory: number | undefined;
  /** SM time over held time of the last hour, for each GPU: never one average alone. */
  hour: number[];
  since: number | undefined;
}
export interface NamespaceRow {
  namespace: string;
  pods: PodRow[];
  given: number | undefined;
  held: number;
  working: number;
  unused: number;
}

export const ALLOCATIONS = "gpuscope_allocation_used";
/** SM time over held time, by pod and GPU. */
export const HOUR_USE =
  'increase(gpuscope_owner_busy_seconds_total{kind="pod"}[1h]) / increase(gpuscope_owner_held_seconds_total{kind="pod"}[1h])';

const keyOf = (namespace: string, pod: string): string => `${namespace}/${pod}`;

export function podRows(
  picture: LivePicture,
  allocations: readonly InstantSample[],
  hours: readonly InstantSample[],
): PodRow[] {
  const gpus = new Map(picture.gpus.map((gpu) => [gpu.uuid, gpu]));
  const sessions = groupBy(
    picture.sessions.filter((one) => one.pod),
    (one) => keyOf(one.namespace ?? "", one.pod ?? ""),
  );
  // Slurm's allocations are in the same metric; only a kubelet's say what a pod was given.
  const toPods = allocations.filter((one) => one.metric["pod"]);
  const given = groupBy(toPods, (one) => keyOf(one.metric["namespace"] ?? "", one.metric["pod"] ?? ""));
  const use = groupBy(hours, (one) => keyOf(one.metric["namespace"] ?? "", one.metric["name"] ?? ""));
  const podsOn = countPods(picture, allocations);
  return [...new Set([...sessions.keys(), ...given.keys()])].sort(naturalOrder).map((key) => {
    const own = sessions.get(key) ?? [];
    const allocated = given.get(key) ?? [];
    const uuids = [...new Set([...allocated.map((one) => one.metric["uuid"] ?? ""), ...own.map((one) => one.uuid)])];
    const replicas = new Set(allocated.filter((one) => one.metric["replica"]).map((one) => one.metric["uuid"]));
    const rows = uuids.map((uuid) => ({
      uuid,
      gpu: gpus.get(uuid),
      shared: replicas.has(uuid) || (podsOn.get(uuid)?.size ?? 0) > 1,
      sessions: own.filter((one) => one.uuid === uuid),
    }));
    const [namespace = "", pod = ""] = [key.slice(0, key.indexOf("/")), key.slice(key.indexOf("/") + 1)];
    const memory = own.map((one) => one.memory).filter((one): one is number => one !== undefined);
    const started = own.map((one) => one.since).filter((one): one is number => one !== undefined);
    return {
      namespace,
      pod,
      containers: [
        ...new Set([
          ...own.map((one) => one.container ?? ""),
          ...allocated.map((one) => one.metric["container"] ?? ""),
        ]),
      ]
        .filter(Boolean)
        .sort(),
      nodes: [...new Set([...own.map((one) => one.node), ...rows.map((one) => one.gpu?.node ?? "")])]
        .filter(Boolean)
        .sort(naturalOrder),
      given: toPods.length ? allocated.length : undefined,
      gpus: rows,
      working: rows.filter(isWorking).length,
      memory: memory.length ? memory.reduce((sum, one) => sum + one, 0) : undefined,
      hour: (use.get(key) ?? [])
        .map((one) => Number(one.value[1]))
        .filter((one) => Number.isFinite(one))
        .map((one) => Math.min(one, 1))
        .sort((a, b) => a - b),
      since: started.length ? Math.min(...started) : undefined,
    };
  });
}

function countPods(picture: LivePicture, allocations: readonly InstantSample[]): Map<string, Set<string>> {
  const pods = new Map<string, Set<string>>();
  const add = (uuid: string, key: string): void => {
    const known = pods.get(uuid) ?? new Set();
    pods.set(uuid, known.add(key));
  };
  for (const one of picture.sessions) if (one.pod) add(one.uuid, keyOf(one.namespace ?? "", one.pod));
  for (const { metric } of allocations)
    if (metric["pod"]) add(metric["uuid"] ?? "", keyOf(metric["namespace"] ?? "", metric["pod"]));
  return pods;
}

export function namespaceRows(pods: readonly PodRow[]): NamespaceRow[] {
  return [...groupBy(pods, (pod) => pod.namespace)]
    .map(([namespace, members]) => ({
      namespace,
      pods: members,
      given: members.every((pod) => pod.given === undefined)
        ? undefined
        : members.reduce((sum, pod) => sum + (pod.given ?? 0), 0),
      // A GPU that several pods share counts once, as in the fleet.
      held: uuidsOf(members, () => true).size,
      working: uuidsOf(members, isWorking).size,
      unused: [
        ...groupBy(
          members.flatMap((pod) => pod.gpus),
          (one) => one.uuid,
        ).values(),
      ].filter((shares) => shares.every(isUnused)).length,
    }))
    .sort((left, right) => right.held - left.held || naturalOrder(left.namespace, right.namespace));
}

const uuidsOf = (pods: readonly PodRow[], chosen: (one: PodGpu) => boolean): Set<string> =>
  new Set(pods.flatMap((pod) => pod.gpus.filter(chosen).map((one) => one.uuid)));

const isWorking = (one: PodGpu): boolean => one.sessions.some((session) => session.state === "active");

/** Given, and nothing of the pod works on it: no process, or all of them are known to be idle. */
export const isUnused = (one: PodGpu): boolean => one.sessions.every((session) => session.state === "idle");
