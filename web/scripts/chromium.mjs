// Chromium as the machine has it, driven without its own download; for tests, screenshots and measurements.
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join } from "node:path";
import { chromium } from "playwright-core";

export const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");

const NAMES = ["chromium", "chromium-browser", "google-chrome"];
// Root in a container has no sandbox; the rest keeps the browser from asking the network for anything.
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export function findChromium() {
  if (process.env.GPUSCOPE_CHROMIUM) return process.env.GPUSCOPE_CHROMIUM;
  const places = (process.env.PATH ?? "").split(delimiter).flatMap((folder) => NAMES.map((name) => join(folder, name)));
  return places.find((place) => existsSync(place));
}

export function launch() {
  const executablePath = findChromium();
  if (!executablePath) throw new Error("no Chromium on this machine: install the package chromium");
  return chromium.launch({ executablePath, headless: true, args: FLAGS });
}
