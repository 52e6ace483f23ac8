// What the palette can jump to: views, nodes, GPUs, users, jobs, pods and metrics, each with the address it opens. No DOM.
import { naturalOrder } from "./format";
import type { LivePicture } from "./live";
import { linkTo } from "./router";

export const PLACE_KINDS = ["view", "node", "gpu", "user", "job", "pod", "metric"] as const;
export type PlaceKind = (typeof PLACE_KINDS)[number];

export interface Place {
  kind: PlaceKind;
  text: string;
  href: string;
}

export function placesOf(picture: LivePicture, views: readonly Place[], metrics: readonly string[]): Place[] {
  const users = new Set<string>();
  const jobs = new Set<string>();
  const pods = new Map<string, string>();
  for (const one of picture.sessions) {
    if (one.user) users.add(one.user);
    if (one.job) jobs.add(one.job);
    if (one.pod) pods.set([one.namespace, one.pod].filter(Boolean).join("/"), one.pod);
  }
  const sorted = (names: Iterable<string>): string[] => [...names].sort(naturalOrder);
  return [
    ...views,
    ...sorted(picture.nodes.map((node) => node.name)).map((name): Place => ({
      kind: "node",
      text: name,
      href: linkTo("node", name),
    })),
    ...picture.gpus.map((gpu): Place => ({
      kind: "gpu",
      text: `${gpu.node} GPU ${gpu.gpu}`,
      href: linkTo("gpu", gpu.uuid),
    })),
    ...sorted(users).map((name): Place => ({ kind: "user", text: name, href: linkTo("sessions", "", { q: name }) })),
    ...sorted(jobs).map((name): Place => ({ kind: "job", text: name, href: linkTo("job", name) })),
    ...sorted(pods.keys()).map((name): Place => ({
      kind: "pod",
      text: name,
      href: linkTo("kubernetes", "", { q: pods.get(name) ?? name }),
    })),
    ...metrics.map((name): Place => ({ kind: "metric", text: name, href: linkTo("explore", "", { q: name }) })),
  ];
}

/** Those whose text begins with what was typed come first, then those that have all the words; views before GPUs. */
export function findPlaces(places: readonly Place[], typed: string, most: number): Place[] {
  const text = typed.trim().toLowerCase();
  const words = text.split(/\s+/).filter(Boolean);
  const begin: Place[] = [];
  const hold: Place[] = [];
  for (const place of places) {
    const own = place.text.toLowerCase();
    if (own.startsWith(text)) begin.push(place);
    else if (words.every((word) => own.includes(word))) hold.push(place);
    if (begin.length >= most) break;
  }
  return [...begin, ...hold].slice(0, most);
}
