// Numbers on screen against the API of the same moment: what the page was answered is kept, and what it shows is worked out
// anew from these answers or from raw samples of the same time.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open, openStill } from "./browser.mjs";
import { boards, browser, live, URL_ } from "./server-under-test.mjs";

const hours = (value) => {
  if (value > 0 && value < 0.05) return "<0.1";
  return Math.abs(value) < 99.95
    ? value.toFixed(1)
    : Math.round(value).toString();
};
const numberOf = (text) =>
  Number.parseFloat(text.replace(/[,\s]/g, "").replace("−", "-"));

const openKept = (address, change) => openStill(browser, URL_, address, change);
const close = async (page) => {
  assert.deepEqual(page.problems, []);
  await page.context().close();
};
const range = async (query, at) => {
  const parameters = new URLSearchParams({ query, time: String(at) });
  const answer = await fetch(`${URL_}api/v1/query?${parameters}`);
  return (await answer.json()).data.result;
};

/** Units that worked, and units that were held and did not, in the quarter of an hour that ends at `at`, from raw samples. */
async function countUnits(at) {
  const highest = async (name) => {
    const found = new Map();
    for (const { metric, value } of await range(
      `max_over_time(${name}[900s])`,
      at,
    ))
      found.set(
        metric.uuid,
        Math.max(Number(value[1]), found.get(metric.uuid) ?? 0),
      );
    return found;
  };
  const busy = await highest("gpuscope_gpu_utilization_ratio");
  const active = await highest("gpuscope_gpu_sm_active_ratio");
  // What can be held: GPUs without MIG, and MIG instances, which have no utilisation of their own.
  const units = await highest("gpuscope_gpu_processes");
  const works = (uuid) => (busy.get(uuid) ?? active.get(uuid) ?? 0) >= 0.05;
  assert.ok([...units.keys()].some((uuid) => uuid.startsWith("MIG-")));
  return {
    units: units.size,
    working: [...units.keys()].filter(works).length,
    held: [...units].filter(([uuid, many]) => many > 0 && !works(uuid)).length,
  };
}

test("the strip of the last day counts the GPUs that raw samples count", async () => {
  // The last quarter of an hour is not over: the page is compared at a moment at which the counts stand still.
  for (;;) {
    const before = await countUnits(Math.ceil(Date.now() / 900_000) * 900);
    const { page, find } = await openKept("#/fleet");
    await page.waitForSelector(".today path.today-working");
    const label = await page.getAttribute(".today svg", "aria-label");
    const [url] = (
      await find("count((max by (instance, uuid) (max_over_time")
    ).at(-1);
    await close(page);
    const after = await countUnits(
      Number(new URLSearchParams(url.split("?")[1]).get("end")),
    );
    if (JSON.stringify(before) !== JSON.stringify(after)) continue;
    const told = (word) =>
      numberOf(new RegExp(`${word} (\\d+)`).exec(label)[1]);
    assert.equal(told("[:,] working"), after.working, label);
    assert.equal(told("held, not working"), after.held, label);
    const shown = [...label.matchAll(/ (\d+)(?:,|$)/g)].map((one) => +one[1]);
    assert.equal(
      shown.reduce((sum, one) => sum + one, 0),
      after.units,
      label,
    );
    return;
  }
});

test("the heat map tells the value of the place pointed at, and keeps to the filter", async () => {
  const { page, find } = await openKept("#/fleet?v=time&from=now-3h");
  await page.waitForSelector(".heat canvas");
  const canvas = page.locator(".heat canvas");
  await canvas.hover({ position: { x: 151, y: 6 } });
  const told = page.locator(".heat p[role=status]");
  await page.waitForFunction(() =>
    / %$/.test(
      document.querySelector(".heat p[role=status]").textContent.trim(),
    ),
  );
  const text = await told.textContent();
  const [node] = [...live.nodes].sort((a, b) => (a.name < b.name ? -1 : 1));
  const first = boards().find((one) => one.node === node.name);
  assert.ok(text.startsWith(`${node.name} GPU ${first.gpu}`), text);
  // The page may ask twice while it is laid out; the last answer is shown.
  const [, answer] = (
    await find("avg_over_time(gpuscope_gpu_utilization_ratio")
  ).at(-1);
  const series = answer.data.result.find(
    (one) => one.metric.uuid === first.uuid,
  );
  const percent = Number(series.values[0][1]) * 100;
  assert.ok(Math.abs(numberOf(text.split("·").at(-1)) - percent) <= 0.5, text);
  const rows = () => page.getAttribute(".heat canvas", "aria-label");
  assert.ok((await rows()).includes(`${answer.data.result.length} rows`));
  await page.fill("#search", node.name);
  const own = answer.data.result.filter(
    (one) => one.metric.instance === node.instance,
  ).length;
  await page.waitForSelector(`.heat canvas[aria-label*=" ${own} rows"]`);
  await close(page);
});

test("compared GPUs have the picture's numbers, and lines of two nodes have two names", async () => {
  const [one, other] = live.nodes.map((node) =>
    boards().find((gpu) => gpu.node === node.name),
  );
  const { page, picture } = await openKept(
    `#/compare?gpus=${one.uuid},${other.uuid}&from=now-15m`,
  );
  await page.waitForSelector("td[data-column=busy]");
  for (const uuid of [one.uuid, other.uuid]) {
    const gpu = picture.gpus.find((each) => each.uuid === uuid);
    const row = page.locator("tr", { has: page.locator(`a[href*="${uuid}"]`) });
    const cell = async (name) =>
      numberOf(await row.locator(`td[data-column=${name}]`).textContent());
    assert.equal(await cell("power"), Math.round(gpu.power));
    assert.equal(await cell("temperature"), Math.round(gpu.temperature));
    await page.waitForSelector(
      `[data-panel=node_power] tbody th >> text="${gpu.node} GPU ${gpu.gpu}"`,
      { state: "attached" },
    );
  }
  await close(page);
});

test("what changed are the averages of both ranges", async () => {
  let to = Math.floor(live.now) - 60;
  let page, row;
  // Only the largest changes are listed: which metrics they are of depends on the moment, and in a quiet half hour
  // there may be none. The one before it is compared then.
  for (; ; to -= 1800) {
    assert.ok(to > live.now - 5 * 3600, "nothing changed in five hours");
    ({ page } = await openKept(`#/changes?from=${to - 1800}&to=${to}`));
    const numbers = page.locator("section").last();
    await numbers.locator("td[data-column=before], p.soft").first().waitFor();
    row = numbers
      .locator("tr", { hasText: /gpuscope_gpu_\w+_(ratio|watts)/ })
      .first();
    if (await row.count()) break;
    await close(page);
  }
  const [name] = /gpuscope_gpu_\w+_(ratio|watts)/.exec(await row.textContent());
  const scale = name.endsWith("ratio") ? 100 : 1;
  const uuid = /gpu\/([^?]+)/.exec(
    await row.locator("a").getAttribute("href"),
  )[1];
  const metric = `${name}{uuid="${decodeURIComponent(uuid)}"}`;
  for (const [column, offset] of [
    ["during", ""],
    ["before", " offset 1800s"],
  ]) {
    const [{ value }] = await range(
      `avg_over_time(${metric}[1800s]${offset})`,
      to,
    );
    const shown = await row.locator(`td[data-column=${column}]`).textContent();
    const difference = numberOf(shown) - scale * Number(value[1]);
    assert.ok(Math.abs(difference) <= 0.501, `${name} ${column}: ${shown}`);
  }
  await close(page);
});

test("Slurm's queue, reservations and partitions are its samples", async () => {
  const { page, find } = await openKept("#/slurm");
  await page.waitForSelector("td[data-column=jobs]");
  const samples = (await find("gpuscope_slurm_(up"))[0][1].data.result;
  const of = (name) =>
    samples.filter((one) => one.metric.__name__ === `gpuscope_slurm_${name}`);
  const pending = of("partition_jobs_pending").filter(
    (one) => Number(one.value[1]) > 0,
  );
  const shown = await page.locator("td[data-column=jobs]").allTextContents();
  assert.deepEqual(
    shown.map(Number).sort(),
    pending.map((one) => Number(one.value[1])).sort(),
  );
  const waiting = page.getByRole("region", { name: "Jobs that wait" });
  for (const { metric } of of("pending_job_info")) {
    const row = waiting.locator("tr", {
      has: page.locator(
        `td[data-column=job] bdi:text-is("${metric.slurm_job}")`,
      ),
    });
    const gpus = of("pending_job_gpus").find(
      (one) => one.metric.slurm_job === metric.slurm_job,
    );
    const cell = (id) => row.locator(`td[data-column=${id}]`).textContent();
    assert.equal(await cell("user"), metric.user);
    assert.equal(await cell("gpus"), gpus?.value[1] ?? "–");
    assert.ok((await cell("reason")).startsWith(metric.reason));
    // Slurm does not tell since when a job could start that waits for another.
    const isEligible = of("pending_job_eligible_timestamp_seconds").some(
      (one) => one.metric.slurm_job === metric.slurm_job,
    );
    assert.match(await cell("waited"), isEligible ? /\d (s|min|h|d)/ : /^–$/);
  }
  await page.click("text=/^Reservations/");
  await page.waitForSelector(".axis li");
  for (const { metric } of of("reservation_info")) {
    const text = await page
      .locator(".axis li", { hasText: metric.reservation })
      .textContent();
    const [gpus] = of("reservation_gpus").filter(
      (one) => one.metric.reservation === metric.reservation,
    );
    assert.match(text, new RegExp(`${gpus.value[1]} GPUs?`));
  }
  await page.click("text=/^Partitions/");
  await page.waitForSelector("td[data-column=running]");
  for (const { metric, value } of of("partition_jobs").filter(
    (one) => one.metric.state === "running",
  )) {
    const row = page.locator("tr", {
      has: page.locator(
        `td[data-column=partition] bdi:text-is("${metric.partition}")`,
      ),
    });
    assert.equal(
      await row.locator("td[data-column=running]").textContent(),
      value[1],
    );
  }
  await close(page);
});

test("a job's receipt shows the hours, energy and GPUs of the API", async () => {
  const job = live.gpus.find((gpu) => gpu.jobs?.length).jobs[0];
  const { page, find } = await openKept(`#/job/${job}`);
  await page.waitForSelector(".facts dd");
  const receipt = (await find(`api/job?id=${job}`)).at(-1)[1];
  const facts = await page.textContent(".facts");
  assert.ok(facts.includes(`${hours(receipt.gpu_hours)} GPU-h`), facts);
  assert.ok(facts.includes(`${hours(receipt.busy_hours)} GPU-h`), facts);
  assert.ok(facts.includes(`${hours(receipt.energy_kwh)} kWh`), facts);
  const shares = await page.locator("td[data-column=busy]").allTextContents();
  assert.deepEqual(
    shares.map(numberOf),
    receipt.gpus.map((one) => Math.round(one.busy_ratio * 100)),
  );
  await close(page);
});

test("namespaces add up their pods; what no kubelet told is absent, not 0", async () => {
  const { page, picture } = await openKept("#/kubernetes");
  await page.waitForSelector("td[data-column=working]");
  const held = new Map();
  for (const one of picture.sessions.filter((each) => each.pod)) {
    const own = held.get(one.namespace) ?? new Set();
    held.set(one.namespace, own.add(one.uuid)); // two pods may share a GPU
  }
  for (const [namespace, gpus] of held) {
    const row = page.locator("tr", {
      has: page.locator(
        `td[data-column=namespace] bdi:text-is("${namespace}")`,
      ),
    });
    const cell = (name) => row.locator(`td[data-column=${name}]`).textContent();
    assert.equal(await cell("held"), String(gpus.size));
    assert.equal(await cell("given"), "–");
  }
  await close(page);
});

test("two periods of a report: hours, change and parts are the API's", async () => {
  const { page, find } = await openKept("#/reports?since=1d&compare=1");
  await page.waitForSelector("td[data-column=change]");
  const reports = (await find("api/report")).map(([, report]) => report);
  const [before, now] = reports.sort((a, b) => a.start - b.start);
  for (const row of now.rows.slice(0, 5)) {
    const shown = page.locator("tr", {
      has: page.locator(`td[data-column=name] bdi:text-is("${row.name}")`),
    });
    const cell = (name) =>
      shown.locator(`td[data-column=${name}]`).textContent();
    assert.equal(await cell("held"), hours(row.gpu_hours));
    assert.equal(await cell("idle"), hours(row.idle_hours));
    // The demo's history is six hours long: nothing was read in the day before.
    assert.equal(before.invariant.gpu_hours, 0);
    assert.equal(await cell("change"), "–");
  }
  const parts = await page.textContent(".parts");
  for (const part of ["owners", "unattributed", "free", "lost", "stranded"])
    assert.ok(parts.includes(hours(now.invariant[part])), part);
  await close(page);
});

test("the test button of a channel shows what the channel answered", async () => {
  const channel = {
    channel: "team/webhook/0",
    receiver: "team",
    kind: "webhook",
    sent_to: "http://127.0.0.1:1/",
    up: false,
    sent: 3,
    failed: 2,
    last_sent_at: null,
    last_error: "connection refused",
  };
  const page = await open(browser, `${URL_}#/settings?tab=channels`, {
    before: async (one) => {
      await one.route("**/api/notify", (route) =>
        route.fulfill({ json: { channels: [channel] } }),
      );
      await one.route("**/api/notify/test", (route) => {
        assert.deepEqual(route.request().postDataJSON(), { receiver: "team" });
        return route.fulfill({
          json: {
            channels: [{ channel: channel.channel, error: "HTTP 500" }],
          },
        });
      });
    },
  });
  const cell = (name) => page.textContent(`td[data-column=${name}]`);
  await page.waitForSelector("td[data-column=test] button");
  assert.equal(await cell("sent"), "3");
  assert.equal(await cell("failed"), "2");
  await page.click("td[data-column=test] button");
  await page.waitForSelector("p.crit >> text=team/webhook/0: HTTP 500");
  await close(page);
});
