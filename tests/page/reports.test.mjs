// The HTML pages of reports and receipts, opened from a file in a real Chromium: nothing goes wrong, nothing is
// loaded, the plots are there, and the numbers are those of the JSON made by the same run.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { AXE } from "../../web/scripts/chromium.mjs";
import { launch, open } from "./browser.mjs";

const FOLDER = process.env.GPUSCOPE_REPORTS;
const WIDTHS = [390, 1280];
let browser;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());

const document_ = (name) =>
  JSON.parse(readFileSync(join(FOLDER, `${name}.json`), "utf-8"));
const number = (text) => Number(text.replace(/[,~%]/g, ""));

/** Every finding, also minor ones: these pages are small enough to have none. */
async function axeFindings(page) {
  await page.evaluate(AXE);
  const result = await page.evaluate(() =>
    globalThis.axe.run(document, { resultTypes: ["violations"] }),
  );
  return result.violations.map(
    (one) => `${one.id}: ${one.nodes[0].html.slice(0, 200)}`,
  );
}

async function openReport(name, options) {
  const requests = [];
  const url = pathToFileURL(join(FOLDER, `${name}.html`)).href;
  const page = await open(browser, url, {
    ...options,
    before: (one) =>
      one.on("request", (request) => requests.push(request.url())),
  });
  assert.deepEqual(requests, [url], "nothing but the file itself is loaded");
  return page;
}

for (const name of ["usage", "receipt"])
  for (const colorScheme of ["light", "dark"])
    for (const width of WIDTHS)
      test(`${name}, ${colorScheme}, ${width} px`, async () => {
        const page = await openReport(name, {
          colorScheme,
          viewport: { width, height: 900 },
        });
        const wider = await page.evaluate(
          () => document.documentElement.scrollWidth - innerWidth,
        );
        assert.ok(wider <= 0, `the page is ${wider} px wider than its window`);
        const bars = await page.$$eval("svg", (all) =>
          all
            .filter((one) => one.checkVisibility())
            .map((one) => one.querySelectorAll("rect").length),
        );
        assert.ok(bars.length > 0 && bars[0] > 0, "the first plot has bars");
        const sizes = await page.$$eval("svg:not(.bar) text", (all) =>
          all
            .filter((one) => one.checkVisibility())
            .map((one) => one.getBoundingClientRect().height),
        );
        assert.ok(
          Math.min(...sizes, 99) >= 8,
          `labels of ${Math.min(...sizes)} px`,
        );
        const names = await page.$$eval("tbody th", (all) =>
          all.map((one) => one.getBoundingClientRect().width),
        );
        assert.ok(
          Math.min(...names) >= 60,
          "names are not broken into letters",
        );
        assert.deepEqual(await axeFindings(page), []);
        assert.deepEqual(page.problems, []);
        await page.context().close();
      });

test("a usage report shows the numbers of its JSON", async () => {
  const page = await openReport("usage", {});
  const report = document_("usage");
  const rows = await page.$$eval("tbody tr", (all) =>
    all.map((row) => [
      row.querySelector("th").textContent,
      ...[...row.querySelectorAll("td:not(.plot)")].map(
        (one) => one.textContent,
      ),
    ]),
  );
  assert.equal(rows.length, report.rows.length);
  for (const [at, row] of report.rows.entries()) {
    const [name, held, busy] = rows[at];
    assert.equal(name, row.name);
    assert.equal(number(held), Number(row.gpu_hours.toFixed(1)));
    if (row.busy_hours === null) assert.equal(busy, "–");
    else assert.equal(number(busy), Number(row.busy_hours.toFixed(1)));
  }
  const sum = await page.textContent(
    "h2:has-text('Where the hours went') ~ p:not(.legend)",
  );
  assert.ok(
    sum.startsWith(
      `${report.invariant.gpu_hours.toFixed(1)} GPU-hours = ${report.invariant.owners.toFixed(1)} owners`,
    ),
    sum,
  );
  const plotted = await page.$$eval("svg:not(.bar) g", (all) => all.length);
  assert.equal(plotted, report.buckets.length);
  await page.context().close();
});

test("a receipt shows the numbers of its JSON", async () => {
  const page = await openReport("receipt", {});
  const receipt = document_("receipt");
  const facts = Object.fromEntries(
    await page.$$eval("table.facts tr", (all) =>
      all.map((row) => [
        row.querySelector("th").textContent,
        row.querySelector("td").textContent,
      ]),
    ),
  );
  assert.ok(
    facts["GPU-hours"].startsWith(
      `${receipt.gpu_hours.toFixed(2)} held, ${receipt.busy_hours.toFixed(2)} busy`,
    ),
  );
  assert.equal(facts.energy, `${receipt.energy_kwh.toFixed(2)} kWh`);
  const busy = await page.$$eval(".scroll tbody tr", (all) =>
    all.map((row) => row.querySelectorAll("td")[2].textContent),
  );
  assert.deepEqual(
    busy,
    receipt.gpus.map((gpu) => `${(100 * gpu.busy_ratio).toFixed(0)} %`),
  );
  const text = await page.textContent("main");
  for (const note of receipt.notes)
    assert.ok(text.includes(note.command), note.command);
  await page.context().close();
});

test("on paper the page is light, in dark mode too", async () => {
  const page = await openReport("usage", { colorScheme: "dark" });
  await page.emulateMedia({ media: "print", colorScheme: "dark" });
  assert.equal(
    await page.evaluate(() => getComputedStyle(document.body).backgroundColor),
    "rgb(255, 255, 255)",
  );
  const pdf = await page.pdf({ format: "A4" });
  assert.ok(pdf.length > 5_000);
  await page.context().close();
});
