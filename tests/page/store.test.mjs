// The same page over a real Prometheus, where a node's `instance` is an address and not its name.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, open, query } from "./browser.mjs";

const URL_ = process.env.GPUSCOPE_STORE_URL;
let browser;
let live;
before(async () => {
  browser = await launch();
  live = await (await fetch(`${URL_}api/live`)).json();
});
after(() => browser?.close());

test("the fleet and its source are the engine's", async () => {
  const page = await open(browser, URL_);
  await page.waitForSelector("[data-total=gpus]");
  assert.equal(
    Number.parseFloat(await page.textContent("[data-total=gpus]")),
    (await query(URL_, "gpuscope_gpu_info")).length,
  );
  assert.ok((await page.textContent(".age")).includes(live.source));
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("a node's panels are drawn, its host's too", async () => {
  const [node] = live.nodes;
  assert.notEqual(node.instance, node.name);
  const page = await open(browser, `${URL_}#/node/${node.name}?from=now-15m`, {
    viewport: { width: 1440, height: 4000 },
  });
  for (const panel of ["node_levels", "node_power", "host_memory", "host_load"])
    await page.waitForSelector(`[data-panel=${panel}] canvas`);
  assert.equal(await page.locator(".failed").count(), 0);
  await page.context().close();
});

test("Explore answers with the engine's numbers and its words", async () => {
  const page = await open(
    browser,
    `${URL_}#/explore?q=gpuscope_gpu_memory_total_bytes&as=table`,
  );
  await page.waitForSelector("td.number");
  const shown = (await page.locator("td.number").allTextContents()).sort();
  assert.deepEqual(
    shown,
    (await query(URL_, "gpuscope_gpu_memory_total_bytes"))
      .map((one) => one.value[1])
      .sort(),
  );
  await page.goto(`${URL_}#/explore?q=sum(`);
  await page.waitForSelector("[role=alert] >> text=/parse error/i");
  await page.context().close();
});
