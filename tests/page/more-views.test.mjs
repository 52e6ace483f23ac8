// Alerts, findings, Slurm, Kubernetes, reports, settings, what changed, compare, the palette and Explore: each opened over a
// real demo server, its numbers against the API's, on narrow and wide screens, by keyboard, in four languages.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { go, open, openStill } from "./browser.mjs";
import { boards, browser, live, URL_ } from "./server-under-test.mjs";

const json = async (path, options) =>
  (await fetch(URL_ + path, options)).json();
const costsOf = async (page) =>
  (await page.locator("td[data-column=cost]").allTextContents())
    .map((text) => Number.parseFloat(text.replace(/[<,]/g, "")))
    .filter((cost) => !Number.isNaN(cost));

test("findings are the API's, ranked by cost, and open their evidence at their time", async () => {
  const { page, find } = await openStill(browser, URL_, "#/findings?since=1d");
  await page.waitForSelector("td[data-column=cost]");
  const [[, answer]] = await find("api/findings");
  const costs = await costsOf(page);
  const told = answer.findings
    .map((one) => one.cost_gpu_hours)
    .filter((cost) => cost !== null);
  assert.ok(told.length);
  assert.equal(costs.length, told.length);
  [...told]
    .sort((a, b) => b - a)
    .forEach((cost, place) =>
      assert.ok(Math.abs(cost - costs[place]) <= 0.5, `${cost} ${costs}`),
    );
  await page.locator("a", { hasText: "Evidence" }).first().click();
  await page.waitForSelector("textarea");
  const address = new URLSearchParams(page.url().split("?")[1]);
  const [first] = answer.findings;
  assert.equal(address.get("q"), first.evidence);
  assert.ok(Math.abs(Number(address.get("from")) - first.since) <= 1802);
  await page.context().close();
});

test("findings of now have the cost that the API gives, and their cards say it", async () => {
  const { page, picture } = await openStill(browser, URL_, "#/findings");
  await page.waitForSelector("td[data-column=cost]");
  const { findings } = await json("api/findings");
  const later = new Map(findings.map((one) => [one.id, one.cost_gpu_hours]));
  // The picture is a moment older than the API's answer: what has ended since is not in it.
  const costs = picture.findings
    .filter((one) => typeof one.cost_gpu_hours === "number")
    .map(
      (one) =>
        later.get(one.id) ??
        one.cost_gpu_hours +
          (one.wasted_gpus * (picture.now - one.cost_at)) / 3600,
    )
    .sort((a, b) => b - a);
  assert.ok(costs.length);
  const shown = await costsOf(page);
  assert.equal(shown.length, costs.length);
  costs.forEach((cost, place) =>
    assert.ok(Math.abs(cost - shown[place]) < 0.2, `${cost} ${shown[place]}`),
  );
  await go(page, "#/fleet");
  const card = page.locator(".finding", { hasText: "GPU 0 only" }).first();
  assert.match(await card.textContent(), /Cost<?[\d.,]+ GPU-h/);
  await page.context().close();
});

test("an alert is silenced with a comment, and the silence ends with one", async () => {
  // The one alert that always fires: others come and go.
  const name = "Watchdog";
  const page = await open(browser, `${URL_}#/alerts`);
  const group = page.locator(`[data-alert="${name}"]`).first();
  await group.locator("button", { hasText: "Silence" }).first().click();
  await page.fill("dialog [name=comment]", "known; card ordered");
  await page.fill("dialog [name=author]", "ann");
  await page.click("dialog button[type=submit]");
  await page.waitForSelector("dialog", { state: "detached" });
  const made = (await json("api/v2/silences")).find(
    (one) => one.comment === "known; card ordered",
  );
  assert.equal(made.status.state, "active");
  assert.ok(
    made.matchers.some((one) => one.name === "alertname" && one.value === name),
  );
  await page.click("text=/^Silenced/");
  await page.waitForSelector("text=known; card ordered");
  await page.locator("td button", { hasText: "End" }).first().click();
  await page.fill("input[name=reason]", "card replaced");
  await page.keyboard.press("Enter");
  await page.waitForSelector("text=/card replaced/");
  const ended = (await json("api/v2/silences")).find(
    (one) => one.id === made.id,
  );
  assert.equal(ended.status.state, "expired");
  assert.match(ended.comment, /known; card ordered.*card replaced/);
  const audit = (await json("api/audit")).entries.map((one) => one.action);
  assert.ok(audit.includes("POST /api/v2/silences"));
  assert.ok(audit.some((one) => one.startsWith("DELETE /api/v2/silence/")));
  await page.context().close();
});

test("Slurm's numbers are the metrics', and a job has its receipt", async () => {
  const { page, find } = await openStill(browser, URL_, "#/slurm?tab=running");
  await page.waitForSelector("td[data-column=job] a");
  const [[, answer]] = await find("gpuscope_slurm_(up");
  const of = (name) =>
    answer.data.result.filter(
      (one) => one.metric.__name__ === `gpuscope_slurm_${name}`,
    );
  for (const { metric, value } of of("job_gpus")) {
    const row = page.locator("tr", {
      has: page.locator(`a[href*="job/${metric.slurm_job}"]`),
    });
    assert.equal(
      await row.locator("td[data-column=gpus]").textContent(),
      value[1],
    );
  }
  const [held] = of("job_gpus").filter((one) => Number(one.value[1]) > 0);
  const { slurm_job: job } = held.metric;
  await page.click(`a[href*="job/${job}"]`);
  await page.waitForSelector("td[data-column=busy]");
  const [[, receipt]] = await find(`api/job?id=${job}`);
  assert.equal(
    await page.locator("td[data-column=busy]").count(),
    receipt.gpus.length,
  );
  assert.ok((await page.textContent(".facts")).includes("GPU-h"));
  await go(page, "#/slurm?tab=nodes");
  const [reason] = of("node_reason_info");
  await page.waitForSelector(`text=${reason.metric.reason.slice(0, 20)}`);
  await page.context().close();
});

test("pods and namespaces are those of the live picture", async () => {
  const { page, picture } = await openStill(browser, URL_, "#/kubernetes");
  await page.waitForSelector("td[data-column=pod]");
  const pods = new Set(
    picture.sessions
      .filter((one) => one.pod)
      .map((one) => `${one.namespace}/${one.pod}`),
  );
  const shown = await page.locator("td[data-column=pod]").allTextContents();
  assert.deepEqual([...shown].sort(), [...pods].sort());
  await page.context().close();
});

test("a report adds up on screen as in the API, and two periods stand beside each other", async () => {
  const page = await open(browser, `${URL_}#/reports?since=1d&compare=1`);
  await page.waitForSelector("td[data-column=held]");
  const now = Date.now() / 1000;
  const report = await json(
    `api/report?kind=usage&by=user&start=${Math.floor(now - 86400)}&end=${Math.floor(now)}`,
  );
  const { invariant } = report;
  assert.ok(
    Math.abs(
      invariant.owners +
        invariant.unattributed +
        invariant.free +
        invariant.lost +
        invariant.stranded -
        invariant.gpu_hours,
    ) <
      0.01 * invariant.gpu_hours,
  );
  const held = (
    await page.locator("td[data-column=held]").allTextContents()
  ).map((text) => Number.parseFloat(text.replace(/[<,]/g, "")));
  assert.ok(Math.abs(held[0] - report.rows[0].gpu_hours) < 1);
  assert.ok(await page.locator("td[data-column=change]").count());
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.click('text="CSV"'),
  ]);
  const lines = readFileSync(await download.path(), "utf-8")
    .trim()
    .split("\r\n");
  assert.match(lines[0], /^name,held,busy,idle/);
  assert.equal(lines.length, held.length + 1);
  await page.context().close();
});

test("settings say what the server is, and give the command that adds a node", async () => {
  const page = await open(browser, `${URL_}#/settings?tab=history`);
  const server = await json("api/server");
  await page.waitForSelector(`text=${server.version}`);
  assert.ok((await page.textContent(".facts")).includes("30 d"));
  await page.goto(`${URL_}#/settings?tab=add`);
  await page.waitForSelector(".copy code");
  const command = await page.locator(".copy code").first().textContent();
  assert.ok(command.includes(`--remote-write '${URL_}api/v1/write'`), command);
  await page.goto(`${URL_}#/settings?tab=rules`);
  await page.waitForSelector("td[data-column=rule]");
  const { groups } = (await json("api/v1/rules")).data;
  const rules = groups.flatMap((group) => group.rules).length;
  assert.equal(
    await page.locator("td[data-column=rule]").count(),
    Math.min(rules, 100),
  );
  await page.context().close();
});

test("the palette jumps to node, GPU, user, job, pod and metric, by keyboard only", async () => {
  const { page, picture } = await openStill(browser, URL_, "#/fleet");
  await page.waitForSelector("a.cell");
  const pod = picture.sessions.find((one) => one.pod);
  const job = picture.sessions.find((one) => one.job);
  for (const [typed, address] of [
    [live.nodes[1].name, `#/node/${live.nodes[1].name}`],
    [`${live.nodes[0].name} GPU 3`, "#/gpu/"],
    [job.user, "#/sessions?q="],
    [job.job, `#/job/${job.job}`],
    [pod.pod, "#/kubernetes?q="],
    ["gpuscope_gpus_seen", "#/explore?q=gpuscope_gpus_seen"],
    ["Settings", "#/settings"],
  ]) {
    await page.keyboard.press("/");
    await page.waitForSelector("dialog[open] input");
    await page.keyboard.type(typed);
    await page.waitForSelector(`[role=option] >> text=${typed}`);
    await page.keyboard.press("Enter");
    await page.waitForFunction(
      (wanted) => location.hash.startsWith(wanted),
      address,
    );
    await page.waitForSelector("dialog[open]", { state: "detached" });
    await page.locator("body").click({ position: { x: 2, y: 200 } });
  }
  await page.context().close();
});

test("a link that was shared shows the same time to whoever opens it", async () => {
  const page = await open(
    browser,
    `${URL_}#/node/${live.nodes[0].name}?from=now-3h`,
    { permissions: ["clipboard-read", "clipboard-write"] },
  );
  await page.waitForSelector("[data-range]");
  await page.click("text=Link");
  await page.waitForSelector("text=Copied");
  const link = await page.evaluate(() => navigator.clipboard.readText());
  assert.match(link, /from=\d+&to=\d+/);
  const labels = [];
  for (const address of [link, link]) {
    const other = await open(browser, address);
    await other.waitForSelector("[data-range]");
    labels.push(await other.textContent("[data-range]"));
    await other.context().close();
  }
  assert.equal(labels[0], labels[1]);
  assert.match(labels[0], /\d\d:\d\d:\d\d – \d\d:\d\d:\d\d/);
  await page.context().close();
});

test("Explore marks the mistake, takes several queries, knows units, and saves CSV", async () => {
  const page = await open(
    browser,
    `${URL_}#/explore?q=sum(gpuscope_gpu_power_watts&q2=gpuscope_gpu_memory_total_bytes&as=table`,
  );
  await page.waitForSelector("pre mark");
  assert.equal(await page.textContent("pre mark"), "(");
  assert.match(await page.textContent("[role=alert]"), /At character 4/);
  await page.waitForSelector("td.number");
  const values = await page.locator("td.number").allTextContents();
  assert.ok(
    values.every((text) => /[GM]iB$/.test(text)),
    values[0],
  );
  assert.ok((await page.textContent("td.metric")).includes("GPU"));
  assert.equal(
    await page.locator("td.metric", { hasText: /GPU-[0-9a-f]{8}/ }).count(),
    0,
  );
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.click('text="CSV"'),
  ]);
  const text = readFileSync(await download.path(), "utf-8");
  assert.match(text.split("\r\n")[0], /uuid.*,bytes$/);
  await page.context().close();
});

test("GPUs can be grouped, and a group says its spread", async () => {
  const page = await open(browser, `${URL_}#/fleet?by=model`);
  await page.waitForSelector(".node h2");
  const models = new Set(boards().map((gpu) => gpu.model));
  assert.equal(await page.locator(".node").count(), models.size);
  assert.match(
    await page.textContent(".node header"),
    /lowest .* median .* highest/,
  );
  await page.selectOption(".controls select", "partition");
  await page.waitForSelector(".node h2 >> text=gpu");
  await page.context().close();
});

test("all views speak four languages, the server's sentences included", async () => {
  const words = { ko: "알림", ja: "アラート", zh: "告警" };
  const job = live.gpus.find((gpu) => gpu.jobs?.length).jobs[0];
  const report = await json("api/report?since=1d");
  const receipt = await json(`api/job?id=${job}`);
  const english = [
    ...report.missing,
    ...report.notes,
    ...receipt.notes.map((note) => note.text),
    ...receipt.not_known,
  ].flatMap((text) => /[a-z][a-z ,']{11,}/.exec(text)?.[0] ?? []);
  assert.ok(report.notes.length && receipt.notes.length && english.length);
  for (const [code, word] of Object.entries(words)) {
    const page = await open(browser, `${URL_}#/alerts`, { locale: code });
    await page.waitForSelector(`h1 >> text=${word}`);
    assert.equal(await page.getAttribute("html", "lang"), code);
    for (const [view, shown] of Object.entries({
      "findings?since=1d": "td[data-column=cost]",
      slurm: "td[data-column=jobs]",
      kubernetes: "td[data-column=used]",
      "reports?since=1d": "td[data-column=held]",
      settings: "td[data-column=instance]",
      [`job/${job}`]: ".points li",
    })) {
      await page.goto(`${URL_}#/${view}`);
      await page.waitForSelector(shown);
      const text = await page.textContent("main");
      const left = english.filter((one) => text.includes(one));
      assert.deepEqual(left, [], `${view} ${code}`);
      assert.deepEqual(page.problems, [], `${view} ${code}`);
    }
    await page.context().close();
  }
});
