// Keys of the page: one table, which also makes the help dialog.
import type { Key } from "./i18n";
import { actions as timeActions } from "./parts/time-picker";
import { linkTo } from "./router";
import { chooseTheme, theme, THEMES } from "./settings";
import { refresh } from "./timeline";

interface Shortcut {
  keys: string;
  about: Key;
  /** Absent where a part of the page handles the key itself. */
  act?: () => void;
}

const go = (view: string) => (): void => {
  location.hash = linkTo(view);
};

export const SHORTCUTS: readonly Shortcut[] = [
  { keys: "g f", about: "keys.fleet", act: go("fleet") },
  { keys: "g s", about: "keys.sessions", act: go("sessions") },
  { keys: "g n", about: "keys.findings", act: go("findings") },
  { keys: "g a", about: "keys.alerts", act: go("alerts") },
  { keys: "g e", about: "keys.explore", act: go("explore") },
  { keys: "/", about: "shell.search" },
  { keys: "f", about: "keys.search", act: () => document.getElementById("search")?.focus() },
  { keys: "← ↑ → ↓", about: "keys.arrows" },
  { keys: "[", about: "time.back", act: timeActions.back },
  { keys: "]", about: "time.forth", act: timeActions.forth },
  { keys: "+", about: "time.closer", act: timeActions.closer },
  { keys: "-", about: "time.wider", act: timeActions.wider },
  { keys: "n", about: "time.follow", act: timeActions.follow },
  { keys: "r", about: "time.refresh", act: refresh },
  {
    keys: "d",
    about: "keys.theme",
    act: () => chooseTheme(THEMES[(THEMES.indexOf(theme.get()) + 1) % THEMES.length] ?? "auto"),
  },
  { keys: "?", about: "shell.help" },
];

const PAIR_MS = 900;

interface KeyActions {
  help(): void;
  palette(): void;
}

export function startKeys(actions: KeyActions): () => void {
  let first = "";
  let firstAt = 0;
  const press = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "?" || event.key === "/") {
      event.preventDefault();
      if (event.key === "?") actions.help();
      else actions.palette();
      return;
    }
    const pair = performance.now() - firstAt < PAIR_MS ? `${first} ${event.key}` : "";
    const shortcut = SHORTCUTS.find((one) => one.act && (one.keys === pair || one.keys === event.key));
    first = event.key;
    firstAt = performance.now();
    if (!shortcut) return;
    event.preventDefault();
    shortcut.act?.();
  };
  addEventListener("keydown", press);
  return () => removeEventListener("keydown", press);
}
