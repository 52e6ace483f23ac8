// Alerts, findings, Slurm, Kubernetes, reports and settings over recorded answers of which a test changes some: a source that is
// stale, an engine that does not answer yet, 100,000 jobs, a browser with a wrong clock, two periods of a report.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { go, launch } from "./browser.mjs";
import {
  fulfilStream,
  NOW,
  openAtFixedTime,
  readRecording,
} from "./recorded-demo.mjs";

const { answers } = readRecording();
const VIEWPORT = { width: 1280, height: 900 };
let browser;
before(async () => {
  browser = await launch();
});
after(() => browser?.close());

/** A page whose answers are recorded, but for those that `change` gives: JSON for a path, or undefined. */
async function openChanged(address, change, picture = answers["api/live"]) {
  const look = { address, viewport: VIEWPORT };
  return openAtFixedTime(browser, look, async (route, path) => {
    if (path === "api/live/stream") return fulfilStream(route, picture);
    const answer = (await change(path)) ?? answers[path];
    return answer === undefined
      ? route.fulfill({ status: 404, json: { error: "not recorded" } })
      : route.fulfill({ json: answer });
  });
}
const close = async (page) => {
  assert.deepEqual(page.problems, []);
  await page.context().close();
};
const isSlurm = (path) => path.includes("gpuscope_slurm_");
const slurmAnswer = () => answers[Object.keys(answers).find(isSlurm)];
const VIEWS = {
  "#/alerts?tab=pending": ["api/v1/alerts", "[data-alert]"],
  "#/findings?since=1d": ["api/findings", "td[data-column=what]"],
  "#/slurm?tab=running": ["gpuscope_slurm_", "td[data-column=user]"],
  "#/kubernetes": ["gpuscope_allocation", "td[data-column=pod]"],
  "#/reports?since=1d": ["api/report", "td[data-column=name]"],
  "#/settings": ["api/v1/targets", "td[data-column=instance]"],
};

test("while an engine is slow each view says that it loads, keeps its controls, and shows the answer when it comes", async () => {
  let slow = { path: "api/", answered: Promise.resolve() };
  const page = await openChanged("#/fleet", (asked) =>
    asked.includes(slow.path) ? slow.answered : undefined,
  );
  for (const [address, [path, shown]] of Object.entries(VIEWS)) {
    let answer;
    const answered = new Promise((done) => {
      answer = done;
    });
    slow = { path, answered };
    await go(page, address);
    await page.waitForSelector("main [role=status] >> text=Loading");
    await page.waitForSelector("main h1");
    await page.waitForSelector("nav a[aria-current=page]");
    assert.equal(await page.locator("main [role=alert]").count(), 0, address);
    answer();
    await page.waitForSelector(shown);
  }
  await close(page);
});

test("a browser whose clock is two hours slow is told so on every view, and ages are counted by the server's clock", async () => {
  const skewed = {
    ...answers["api/live"],
    now: NOW + 7200,
    taken_at: NOW + 7200,
  };
  // What is asked for two hours later is answered with what was recorded.
  const later = (path) => {
    const [start] = path.split("&time=");
    const same = Object.keys(answers).find(
      (one) => one.startsWith(start) || one.startsWith(path.split("&start")[0]),
    );
    return answers[same];
  };
  const page = await openChanged("#/alerts?tab=pending", later, skewed);
  for (const [address, [, shown]] of Object.entries(VIEWS)) {
    await go(page, address);
    await page.waitForSelector(shown);
    await page.waitForSelector("text=/This browser's clock is 2 h off/");
    await page.waitForSelector(".age[data-fresh=true]");
  }
  // Slurm was last read two hours before the server's time: the view must not call that new.
  await go(page, "#/slurm");
  await page.waitForSelector("main [role=alert] >> text=/Slurm/");
  await close(page);
});

test("a source that is stale is named: Slurm that is not read, a target that is down, a picture that is old", async () => {
  const old = structuredClone(slurmAnswer());
  for (const one of old.data.result)
    if (one.metric.__name__.endsWith("query_last_success_timestamp_seconds"))
      one.value[1] = String(NOW - 3600);
  const targets = structuredClone(answers["api/v1/targets?state=active"]);
  Object.assign(targets.data.activeTargets[0], {
    health: "down",
    lastError: "connection refused",
  });
  const picture = { ...answers["api/live"], taken_at: NOW - 120 };
  const page = await openChanged(
    "#/slurm",
    (path) =>
      isSlurm(path) ? old : path.includes("targets") ? targets : undefined,
    picture,
  );
  await page.waitForSelector("main p.strip[role=alert]");
  await go(page, "#/settings");
  await page.waitForSelector("tr.severe >> text=connection refused");
  for (const address of Object.keys(VIEWS)) {
    await go(page, address);
    await page.waitForSelector("main h1");
    await page.waitForSelector(".strip.note >> text=/2 min/");
    await page.waitForSelector(".age[data-fresh=false]");
  }
  await close(page);
});

test("100,000 running jobs: the count is whole, a hundred rows are drawn, and a search finds one", async () => {
  const [time] = slurmAnswer().data.result[0].value;
  const sample = (name, labels, value) => ({
    metric: { __name__: `gpuscope_slurm_${name}`, ...labels },
    value: [time, String(value)],
  });
  const jobs = Array.from({ length: 100_000 }, (_, number) => ({
    slurm_job: String(number),
    name: `train-${number}`,
    user: `user${number % 500}`,
    partition: "gpu",
  }));
  const many = {
    status: "success",
    data: {
      resultType: "vector",
      result: [
        sample("up", {}, 1),
        ...jobs.map((job) => sample("job_info", job, 1)),
      ],
    },
  };
  const page = await openChanged("#/slurm?tab=running", (path) =>
    isSlurm(path) ? many : undefined,
  );
  await page.waitForSelector("td[data-column=user]");
  assert.equal(await page.locator("tbody tr").count(), 100);
  const tabs = await page.textContent("main .segments");
  assert.ok(tabs.includes("100,000"), tabs);
  await page.fill("main input[type=search]", "train-98765");
  await page.waitForFunction(
    () => document.querySelectorAll("tbody tr").length === 1,
  );
  assert.ok((await page.textContent("tbody")).includes("98765"));
  await close(page);
});

test("two periods of a report: who held more, less, came and left, in hours", async () => {
  const path = Object.keys(answers).find((one) => one.startsWith("api/report"));
  const now = answers[path];
  const [first] = now.rows;
  const row = (name, gpu_hours) => ({
    ...first,
    namespace: "",
    name,
    gpu_hours,
  });
  const current = [row("more", 12), row("less", 3), row("came", 5)];
  const past = [row("more", 8), row("less", 7.5), row("left", 2)];
  const end = new URLSearchParams(path.split("?")[1]).get("end");
  const page = await openChanged("#/reports?since=1d&compare=1", (asked) =>
    asked.startsWith("api/report")
      ? { ...now, rows: asked.includes(`end=${end}`) ? current : past }
      : undefined,
  );
  await page.waitForSelector("td[data-column=name] >> text=left");
  const rows = await page.evaluate(() =>
    Object.fromEntries(
      [...document.querySelectorAll("tbody tr")].map((one) => {
        const text = (column) =>
          one.querySelector(`[data-column=${column}]`).textContent.trim();
        return [text("name"), [text("held"), text("before"), text("change")]];
      }),
    ),
  );
  const numbers = (texts) =>
    texts.map((one) => Number(one.replace("−", "-")) || 0);
  assert.deepEqual(numbers(rows.more), [12, 8, 4]);
  assert.ok(rows.more[2].startsWith("+"));
  assert.deepEqual(numbers(rows.less), [3, 7.5, -4.5]);
  assert.deepEqual(numbers(rows.came), [5, 0, 5]);
  assert.deepEqual(numbers(rows.left), [0, 2, -2]);
  await close(page);
});

test("a finding about several nodes has no empty link", async () => {
  const recorded = answers["api/findings?since=1d"];
  const everywhere = { ...recorded.findings[0], node: "", uuids: [] };
  const page = await openChanged("#/findings?since=1d", (path) =>
    path.startsWith("api/findings")
      ? { ...recorded, findings: [everywhere, ...recorded.findings.slice(1)] }
      : undefined,
  );
  await page.waitForSelector("td[data-column=what]");
  const cells = page.locator("td[data-column=what]");
  assert.equal(await cells.count(), recorded.findings.length);
  assert.equal(await cells.locator("a").count(), recorded.findings.length - 1);
  await close(page);
});

test("a drained node of Slurm names the command that brings it back; a healthy one names none", async () => {
  const page = await openChanged("#/slurm?tab=nodes", () => undefined);
  await page.waitForSelector("td[data-column=next]");
  const { result } = slurmAnswer().data;
  const drained = new Set(
    result
      .filter(
        ({ metric }) =>
          metric.__name__ === "gpuscope_slurm_node_reason_timestamp_seconds",
      )
      .map(({ metric }) => metric.node),
  );
  assert.ok(drained.size > 0);
  const rows = page.locator("tbody tr");
  for (const row of await rows.all()) {
    const node = await row.locator("td[data-column=node]").textContent();
    const next = await row.locator("td[data-column=next]").textContent();
    if (drained.has(node))
      assert.match(next, new RegExp(`NodeName=${node} State=RESUME$`));
    else assert.equal(next, "");
  }
  await close(page);
});

test("an engine slower than the refresh is asked once at a time, and its answer is shown", async () => {
  let asked = 0;
  let answer;
  const answered = new Promise((done) => {
    answer = done;
  });
  const series = { metric: { __name__: "up" }, values: [[NOW, "1"]] };
  const page = await openChanged("#/explore?q=up", async (path) => {
    if (path.includes("/query?query=up&"))
      return { status: "success", data: { resultType: "vector", result: [] } };
    if (!path.includes("/query_range?query=up&")) return undefined;
    asked += 1;
    await answered;
    return {
      status: "success",
      data: { resultType: "matrix", result: [series] },
    };
  });
  await page.waitForSelector("main >> text=Loading");
  for (let click = 0; click < 3; click += 1)
    await page.click("button:text-is('Refresh')");
  assert.equal(asked, 1);
  answer();
  await page.waitForSelector("[role=status] >> text=/1 series/");
  await close(page);
});

test("a job that was requeued lists its runs", async () => {
  const run = (started_at, efficiency) => ({
    started_at,
    ended_at: started_at + 5400,
    run_seconds: 5400,
    gpus: 2,
    gpu_hours: 3,
    efficiency,
  });
  const receipt = (runs) => ({
    ...{ kind: "job", name: "17", running: false, started_at: NOW - 6000 },
    ...{ run_seconds: 5400, gpus: [], gpu_hours: 3, unknown_hours: 0, runs },
    ...{ throttled_seconds: {}, xids: {}, notes: [], not_known: [] },
    ...{ busy_hours: null, energy_kwh: null, limit_seconds: null },
    ...{ waited_seconds: null, requested_gpus: null, peak_memory_ratio: null },
  });
  const runs = [run(NOW - 20_000, 0.25), run(NOW - 6000, null)];
  for (const [shown, rows] of [
    [runs, 2],
    [runs.slice(1), 0],
  ]) {
    const page = await openChanged("#/job/17", (path) =>
      path.startsWith("api/job") ? receipt(shown) : undefined,
    );
    await page.waitForSelector(".facts dd");
    const cells = page.locator("td[data-column=efficiency]");
    assert.equal(await cells.count(), rows);
    if (rows) {
      assert.deepEqual(await cells.allTextContents(), ["25 %", "–"]);
      await page.waitForSelector("h2 >> text=2 runs");
    }
    await close(page);
  }
});

test("a report is asked for in the browser's time zone, and in UTC where the server does not know it", async () => {
  const asked = [];
  const recorded = Object.keys(answers).find((path) =>
    path.startsWith("api/report"),
  );
  const look = {
    address: "#/reports?since=1d",
    viewport: VIEWPORT,
    timezoneId: "Asia/Seoul",
  };
  const page = await openAtFixedTime(browser, look, (route, path) => {
    if (path === "api/live/stream")
      return fulfilStream(route, answers["api/live"]);
    if (!path.startsWith("api/report"))
      return route.fulfill({ status: 404, json: { error: "not recorded" } });
    const zone = new URL(route.request().url()).searchParams.get("time_zone");
    asked.push(zone);
    const error = "time_zone: 'Asia/Seoul' is not a time zone";
    return zone === null
      ? route.fulfill({ json: answers[recorded] })
      : route.fulfill({ status: 400, json: { error } });
  });
  await page.waitForSelector("td[data-column=name]");
  assert.deepEqual(asked, ["Asia/Seoul", null]);
  await close(page);
});
