// The address after `#` is the whole state of a view, so that a copied link shows the same picture. In:
// `#/gpu/GPU-1?from=now-6h`. Out: a Route. Names in the path come from outside and are encoded.
import { createStore } from "./store";

export interface Route {
  view: string;
  name: string;
  query: Readonly<Record<string, string>>;
}

export function parseRoute(hash: string): Route {
  const [path = "", search = ""] = split(hash.replace(/^#\/?/, ""), "?");
  const [view = "", name = ""] = split(path, "/");
  return { view: view || "fleet", name: decode(name), query: Object.fromEntries(new URLSearchParams(search)) };
}

function split(text: string, at: string): [string, string] {
  const place = text.indexOf(at);
  return place < 0 ? [text, ""] : [text.slice(0, place), text.slice(place + 1)];
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function formatRoute(route: Route): string {
  const path = route.name ? `${route.view}/${encodeURIComponent(route.name)}` : route.view;
  const entries = Object.entries(route.query).filter(([, value]) => value !== "");
  return entries.length ? `#/${path}?${new URLSearchParams(entries)}` : `#/${path}`;
}

const TIME_KEYS = ["from", "to"];

export const route = createStore<Route>(parseRoute(""));

let tailOf: Route | undefined;
let tail = "";

/** The time range in the address, as every link repeats it; a fleet has thousands of links and one range. */
function timeTail(): string {
  if (tailOf === route.get()) return tail;
  tailOf = route.get();
  const kept = Object.entries(tailOf.query).filter(([key]) => TIME_KEYS.includes(key));
  tail = kept.length ? `?${new URLSearchParams(kept)}` : "";
  return tail;
}

/** A link to another view; the time range goes along, the rest of the query does not. */
export function linkTo(view: string, name = "", query: Record<string, string> = {}): string {
  const base = `${formatRoute({ view, name, query: {} })}${timeTail()}`;
  const entries = Object.entries(query);
  if (!entries.length) return base;
  const more = new URLSearchParams(entries);
  return `${base}${timeTail() ? "&" : "?"}${more}`;
}

/** Changes the query of the view shown; an empty value takes the key away. */
export function changeQuery(change: Record<string, string>, remember = false): void {
  const current = route.get();
  const query: Record<string, string> = { ...current.query, ...change };
  for (const key of Object.keys(query)) if (query[key] === "") delete query[key];
  const next = { ...current, query };
  const address = formatRoute(next);
  if (address === location.hash) return;
  // Typing in a filter must not fill the back button; zooming in on a chart must.
  if (remember) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  route.set(next);
}

export function startRouter(): void {
  const read = (): void => route.set(parseRoute(location.hash));
  addEventListener("hashchange", read);
  addEventListener("popstate", read);
  read();
}
