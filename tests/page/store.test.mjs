// The same page over a real Prometheus, where a node's `instance` is an address and not its name.
import assert from "node:assert/strict";
import { test } from "node:test";
import { go, open, query } from "./browser.mjs";
import { browser, live, URL_ } from "./server-under-test.mjs";

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
  const cells = page.locator("td.number");
  assert.match(await cells.first().textContent(), /GiB$/); // the exact number is its title
  const shown = (
    await cells.evaluateAll((all) => all.map((cell) => cell.title))
  ).sort();
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

test("every other view opens over the engine, with its numbers or with the reason why it has none", async () => {
  const page = await open(browser, `${URL_}#/findings`);
  const shows = async (address, pattern) => {
    await go(page, address);
    await page.waitForFunction(
      ([source]) =>
        new RegExp(source, "s").test(document.querySelector("main").innerText),
      [pattern.source],
    );
    assert.equal(await page.locator("main .failed").count(), 0, address);
  };
  const now = await (await fetch(`${URL_}api/live`)).json();
  // What is wrong may change while the page opens: it must be what the API says at that moment.
  await page.waitForFunction(async () => {
    const { findings } = await (await fetch("api/live")).json();
    return document
      .querySelector("main")
      .innerText.includes(findings.length ? "finding" : "Nothing needs you");
  });
  await shows("#/alerts", /No alerting rules are loaded/);
  await shows("#/slurm", /Slurm/);
  const pods = new Set(
    now.sessions.flatMap((one) =>
      one.pod ? [`${one.namespace}/${one.pod}`] : [],
    ),
  );
  await shows(
    "#/kubernetes",
    pods.size ? new RegExp(`${pods.size} pods? in`) : /No pod is on a GPU/,
  );
  await shows("#/reports?since=1d", /GPU-h\s*=/);
  await shows(
    "#/settings?tab=history",
    /The engine behind --store keeps the history/,
  );
  const { data } = await (
    await fetch(`${URL_}api/v1/targets?state=active`)
  ).json();
  await shows("#/settings", new RegExp(data.activeTargets[0].labels.instance));
  assert.equal(
    await page.locator("td[data-column=health]").count(),
    data.activeTargets.length,
  );
  await shows("#/settings?tab=channels", /No channel is set up/);
  assert.deepEqual(page.problems, []);
  await page.context().close();
});
