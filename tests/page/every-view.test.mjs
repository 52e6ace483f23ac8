// Every view opened over a real demo server: no error, nothing wider than the screen from a phone to a wall, nothing that axe
// finds, in light and dark, and everything reached by the Tab key. Slow: some thirty views in a real browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { axeFindings, open } from "./browser.mjs";
import { boards, browser, URL_ } from "./server-under-test.mjs";

const views = () => ({
  findings: "#/findings",
  "findings of a day": "#/findings?since=1d",
  alerts: "#/alerts",
  "alerts of the past": "#/alerts?tab=history&from=now-3h",
  "messages sent": "#/alerts?tab=sent",
  slurm: "#/slurm",
  "running jobs": "#/slurm?tab=running",
  "Slurm's nodes": "#/slurm?tab=nodes",
  reservations: "#/slurm?tab=reservations",
  partitions: "#/slurm?tab=partitions",
  kubernetes: "#/kubernetes",
  reports: "#/reports?since=1d",
  settings: "#/settings",
  "add a node": "#/settings?tab=add",
  rules: "#/settings?tab=rules",
  channels: "#/settings?tab=channels",
  users: "#/settings?tab=users",
  history: "#/settings?tab=history",
  audit: "#/settings?tab=audit",
  "over time": "#/fleet?v=time&from=now-3h",
  "by model": "#/fleet?by=model",
  changes: "#/changes?from=now-1h",
  compare: `#/compare?gpus=${boards()[0].uuid},${boards()[1].uuid}`,
});
const settled = (page) =>
  page.waitForFunction(
    () =>
      document.querySelector("h1") &&
      !document.querySelector("p[role=status].soft")?.textContent.includes("…"),
  );

test("every view opens without an error, fits a phone and a wall, and axe finds nothing", async () => {
  for (const [name, address] of Object.entries(views())) {
    const page = await open(browser, URL_ + address);
    await settled(page);
    assert.deepEqual(page.problems, [], name);
    assert.deepEqual(await axeFindings(page), [], name);
    for (const width of [390, 1024, 2560]) {
      await page.setViewportSize({ width, height: 900 });
      // A chart is drawn anew a frame after the window changes. What stays too wide is named below.
      await page
        .waitForFunction(
          (most) => document.documentElement.scrollWidth <= most,
          width,
          { timeout: 5000 },
        )
        .catch(() => undefined);
      const wide = await page.evaluate(
        () => document.documentElement.scrollWidth,
      );
      assert.ok(wide <= width, `${name} is ${wide} px wide at ${width}`);
    }
    await page.context().close();
  }
});

test("dark colours have the same contrast", async () => {
  for (const name of ["alerts", "findings", "slurm", "reports", "settings"]) {
    const page = await open(browser, URL_ + views()[name], {
      colorScheme: "dark",
    });
    await settled(page);
    assert.deepEqual(await axeFindings(page), [], name);
    await page.context().close();
  }
});

test("Tab reaches every control of a view, in the order it is read", async () => {
  for (const name of ["alerts", "findings", "slurm", "settings"]) {
    const page = await open(browser, URL_ + views()[name]);
    await settled(page);
    const wanted = await page.evaluate(
      () =>
        document.querySelectorAll(
          "main button:not(:disabled), main a[href], main input, main select",
        ).length,
    );
    const reached = new Set();
    for (let press = 0; press < wanted + 40; press += 1) {
      await page.keyboard.press("Tab");
      reached.add(
        await page.evaluate(() => {
          const all = [
            ...document.querySelectorAll(
              "main button:not(:disabled), main a[href], main input, main select",
            ),
          ];
          return all.indexOf(document.activeElement);
        }),
      );
    }
    reached.delete(-1);
    assert.equal(reached.size, wanted, name);
    await page.context().close();
  }
});
