// What the page costs, measured in Chromium: `npm run bench`. Prints a table of value and budget; judges nothing, since
// a loaded machine is slower than the page.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { launch } from "./chromium.mjs";
import { serveStandIn } from "./stand-in.mjs";

const PAGE = fileURLToPath(new URL("../../src/gpuscope/serve/page", import.meta.url));
const UPDATES = 8;
const rows = [];
const note = (what, value, budget, unit) =>
  rows.push({
    what,
    value: `${Math.round(value * 10) / 10} ${unit}`,
    budget: `≤ ${budget} ${unit}`,
    kept: value <= budget ? "yes" : "NO",
  });

function gzipSize(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.name.startsWith("."))
    .reduce(
      (sum, entry) =>
        sum + gzipSync(readFileSync(join(entry.parentPath ?? entry.path, entry.name)), { level: 9 }).length,
      0,
    );
}

/** Time the main thread worked, not time that passed: other processes on the machine do not count. */
async function mainThread(session) {
  const { metrics } = await session.send("Performance.getMetrics");
  const seconds = (name) => metrics.find((metric) => metric.name === name).value;
  return {
    all: seconds("TaskDuration"),
    script: seconds("ScriptDuration"),
    style: seconds("RecalcStyleDuration"),
    layout: seconds("LayoutDuration"),
  };
}

async function measureFleet(browser, server, gpus, paintBudget, updateBudget) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  await page.addInitScript(() => {
    const watch = new MutationObserver(() => {
      if (!document.querySelector("a.cell, .tiny canvas")) return;
      watch.disconnect();
      // Two frames later what was drawn is on screen.
      requestAnimationFrame(() =>
        requestAnimationFrame(() => {
          globalThis.paintedAt = performance.now();
        }),
      );
    });
    watch.observe(document, { childList: true, subtree: true });
  });
  await page.goto(server.url);
  await page.waitForFunction(() => globalThis.paintedAt);
  note(`first meaningful paint, ${gpus} GPUs`, await page.evaluate(() => globalThis.paintedAt), paintBudget, "ms");
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  await page.waitForTimeout(1500);
  const [turns, before] = [server.turns(), await mainThread(session)];
  while (server.turns() < turns + UPDATES) await page.waitForTimeout(100);
  await page.waitForTimeout(300);
  const after = await mainThread(session);
  const each = (name) => ((after[name] - before[name]) / UPDATES) * 1000;
  note(`main thread per update of ${gpus} GPUs`, each("all"), updateBudget, "ms");
  for (const part of ["script", "style", "layout"])
    rows.push({ what: `  of which ${part}, ${gpus}`, value: `${each(part).toFixed(1)} ms`, budget: "", kept: "" });
  await page.close();
}

async function measurePanels(browser, server) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 1400 } });
  await page.addInitScript(() => {
    const watch = new MutationObserver(() => {
      if (document.querySelectorAll(".panel .chart:not(.strip) canvas").length < 6) return;
      watch.disconnect();
      requestAnimationFrame(() => {
        globalThis.drawnAt = performance.now();
      });
    });
    watch.observe(document, { childList: true, subtree: true });
  });
  await page.goto(`${server.url}#/node/node-001?from=now-24h`);
  await page.waitForFunction(() => globalThis.drawnAt);
  const [drawn, arrived] = await page.evaluate(() => [
    globalThis.drawnAt,
    Math.max(
      ...performance
        .getEntriesByType("resource")
        .filter((one) => one.name.includes("query_range") && one.responseEnd < globalThis.drawnAt)
        .map((one) => one.responseEnd),
    ),
  ]);
  note("24 h of 8 GPUs × 6 panels, drawn after the data came", drawn - arrived, 300, "ms");
  await page.close();
}

const browser = await launch();
const server = await serveStandIn({ nodes: 125, gpusEach: 8 });
// A reader loads one language besides English, or none.
note("page, gzip, all views, four languages", gzipSize(PAGE) / 1000, 150, "kB");
await measureFleet(browser, server, "1,000", 1000, 50);
const huge = await serveStandIn({ nodes: 1000, gpusEach: 8 });
await measureFleet(browser, huge, "8,000", 1500, 60);
huge.close();
await measurePanels(browser, server);
await browser.close();
server.close();
console.table(Object.fromEntries(rows.map(({ what, ...rest }) => [what, rest])));
