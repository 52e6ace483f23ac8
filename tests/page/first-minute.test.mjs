// The first minute of a demo, as someone sees it who has just started it: while the history is filled in, nothing is said to be
// wrong or right; then no finding contradicts the plot beside it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { go, open } from "./browser.mjs";
import { browser, URL_ } from "./server-under-test.mjs";

const WORKING_RATIO = 0.01;
const WAITING_RATIO = 0.6;
const FULL_RATIO = 0.9;
/** A beginning is read from steps of a minute, and is not moved for less than one. */
const SAME_SECONDS = 120;

const mean = (values) =>
  values.reduce((sum, one) => sum + one, 0) / values.length;
const isIdle = (values) => Math.max(...values) < WORKING_RATIO;
const waits = (values) => mean(values) < WAITING_RATIO;
/** By kind: what the utilisation and SM activity of its GPUs must be from the moment it is said to have begun. */
const CLAIMS = {
  held_idle: isIdle,
  only_some_work: isIdle,
  allocated_unused: isIdle,
  unused: isIdle,
  waits_for_disk: waits,
  waits_for_network: waits,
  waits_for_data: waits,
  waits_for_rank: (values) => mean(values) >= FULL_RATIO,
  hung: (values) => Math.min(...values) >= FULL_RATIO,
};

const historyRatio = async () => {
  const text = await (await fetch(`${URL_}metrics`)).text();
  return Number(/^gpuscope_demo_history_ratio (\S+)$/m.exec(text)[1]);
};
const picture = async () => (await fetch(`${URL_}api/live`)).json();

/** Waits for a moment that a server reaches by itself. */
async function reach(what, condition) {
  const end = Date.now() + 120_000;
  for (;;) {
    const found = await condition();
    if (found) return found;
    assert.ok(Date.now() < end, `no ${what}`);
    await new Promise((done) => setTimeout(done, 500));
  }
}

/** Utilisation and SM activity as the page draws them in a view, by GPU. */
async function drawnBy(page, address) {
  const answers = [];
  const keep = (response) => {
    const asked = new URL(response.url());
    const expression = asked.searchParams.get("query") ?? "";
    const [, of] = /gpu_(utilization|sm_active)_ratio/.exec(expression) ?? [];
    if (asked.pathname.endsWith("query_range") && of)
      answers.push(response.json().then(({ data }) => ({ of, ...data })));
  };
  page.on("response", keep);
  await go(page, address);
  await page.waitForSelector("[data-panel$=_utilization] canvas");
  await page.waitForFunction(() => !document.querySelector(".loading"));
  page.off("response", keep);
  return (await Promise.all(answers)).flatMap(({ of, result }) =>
    result.map(({ metric, values }) => ({ of, uuid: metric.uuid, values })),
  );
}

test("while the history is filled in, nothing is called wrong or right", async () => {
  const page = await open(browser, `${URL_}#/fleet`);
  await page.waitForSelector(".attention");
  let looks = 0;
  await reach("end of the history", async () => {
    const kinds = await page
      .locator(".attention li.finding")
      .evaluateAll((all) => all.map((one) => one.dataset.kind));
    const said = await page.textContent(".attention");
    // What was on screen before the ratio was read was said while the history was not complete.
    if ((await historyRatio()) === 1) return true;
    assert.deepEqual(kinds, []);
    assert.match(said, /\d+ checks say nothing yet/);
    looks += 1;
    return false;
  });
  assert.ok(looks > 0, "the history was complete before the page was open");
  await page.waitForSelector(".attention li.finding");
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("no finding contradicts the plot beside it", async () => {
  const shown = await reach(
    "finding with a beginning and a claim",
    async () => {
      const { findings, not_known } = await picture();
      const dated = findings.filter((one) => one.since !== null);
      const isKnown = !not_known && dated.some((one) => one.kind in CLAIMS);
      return isKnown && dated;
    },
  );
  const page = await open(browser, `${URL_}#/findings`);
  await page.waitForSelector("td[data-column=what] a");
  let compared = 0;
  for (const finding of shown) {
    const { kind, node, uuids, since } = finding;
    const told = `${kind} ${node} ${uuids} since ${new Date(since * 1000).toISOString()}`;
    const gpus = Math.max(uuids.length, finding.wasted_gpus ?? 0);
    const seconds = (finding.cost_at ?? since) - since + SAME_SECONDS;
    assert.ok(
      (finding.cost_gpu_hours ?? 0) <= (gpus * seconds) / 3600,
      `${told} costs ${finding.cost_gpu_hours} GPU-hours in ${seconds} s`,
    );
    const holds = CLAIMS[kind];
    if (!holds) continue;
    const range = `from=${Math.floor(since - 600)}&to=now`;
    for (const address of [
      ...uuids.map((uuid) => `#/gpu/${encodeURIComponent(uuid)}?${range}`),
      `#/node/${encodeURIComponent(node)}?${range}`,
    ]) {
      const series = await drawnBy(page, address);
      await page.waitForSelector(`li.finding[data-kind=${kind}]`);
      for (const { of, uuid, values } of series) {
        // A busy GPU need not have busy SMs; an idle one has none.
        if (!uuids.includes(uuid) || (of === "sm_active" && holds !== isIdle))
          continue;
        const drawn = values.filter(([at]) => at >= since + SAME_SECONDS);
        if (!drawn.length) continue;
        const numbers = drawn.map(([, value]) => Number(value));
        assert.ok(
          holds(numbers),
          `${told}: ${address} draws ${of} ${numbers.map((one) => one.toFixed(3))}`,
        );
        compared += 1;
      }
    }
  }
  assert.ok(compared > 0, JSON.stringify(shown.map((one) => one.kind)));
  await page.context().close();
});
