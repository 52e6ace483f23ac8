// `server` with two real agents, of which one is killed: every view says which, since when and why, and goes on.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open } from "./browser.mjs";
import { browser, URL_ } from "./server-under-test.mjs";

const VICTIM = Number(process.env.GPUSCOPE_VICTIM_PID);
const json = async (path) => (await fetch(URL_ + path)).json();

test("an agent that is killed stays in every view as gone, and the other lives on", async () => {
  const page = await open(browser, URL_);
  await page.waitForFunction(
    () => document.querySelectorAll(".node").length === 2,
  );
  process.kill(VICTIM, "SIGKILL");
  await page.waitForSelector('a.cell[data-s="gone"]', { timeout: 90_000 });
  await page.waitForSelector("text=/no data since \\d\\d:\\d\\d/");
  assert.equal(await page.locator(".node").count(), 2);
  assert.ok(await page.locator('a.cell:not([data-s="gone"])').count());
  const picture = await json("api/live");
  const lost = picture.gpus.filter((one) => one.node === "lab-2");
  assert.equal(
    Number(await page.textContent("[data-total=gone]")),
    lost.filter((one) => !picture.gpus.some((x) => x.parent === one.uuid))
      .length,
  );
  const go = (address) => page.goto(`${URL_}${address}`);
  await go("#/node/lab-2");
  await page.waitForSelector("h1 >> text=lab-2");
  await page.waitForSelector(".finding >> text=No data from this node");
  await go(`#/gpu/${lost[0].uuid}`);
  await page.waitForSelector(".head >> text=no data");
  await go("#/sessions?by=none");
  await page.waitForSelector("td[data-column=node]");
  const nodes = await page.locator("td[data-column=node]").allTextContents();
  assert.deepEqual(
    [...new Set(nodes)],
    ["lab-1"],
    "its processes are not told",
  );
  await go("#/settings");
  await page.waitForSelector("tr.severe >> text=down");
  const { data } = await json("api/v1/targets");
  const down = data.activeTargets.filter((one) => one.health === "down");
  assert.equal(down.length, 1);
  await page.waitForSelector(`text=${down[0].lastError.slice(0, 20)}`);
  await go("#/findings");
  await page.waitForSelector("td[data-column=what] >> text=lab-2");
  for (const view of ["alerts", "slurm", "kubernetes", "reports?since=1d"]) {
    await go(`#/${view}`);
    await page.waitForSelector("h1");
    assert.equal(await page.locator(".failed").count(), 0, view);
  }
  assert.deepEqual(page.problems, []);
  await page.context().close();
});
