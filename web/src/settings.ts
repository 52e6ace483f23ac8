// What this browser remembers: colours and language. Storage may be forbidden; then nothing is remembered.
import { createStore } from "./store";

export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const remembered = (key: string): string | null => {
  try {
    return localStorage.getItem(`gpuscope.${key}`);
  } catch {
    return null;
  }
};

export const remember = (key: string, value: string): void => {
  try {
    localStorage.setItem(`gpuscope.${key}`, value);
  } catch {
    // A private window: the choice holds until it closes.
  }
};

const stored = remembered("theme");
export const theme = createStore<Theme>(THEMES.find((one) => one === stored) ?? "auto");

export function chooseTheme(next: Theme): void {
  remember("theme", next);
  theme.set(next);
  applyTheme();
}

export function applyTheme(): void {
  document.documentElement.dataset["theme"] = theme.get();
}
