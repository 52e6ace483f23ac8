// Alerts, findings, Slurm, Kubernetes, reports and settings when there is nothing to show, no permission, a hostile name or no
// answer. The server is real; only the answer that a test is about is replaced.
import assert from "node:assert/strict";
import { test } from "node:test";
import { freeze, go, open } from "./browser.mjs";
import { browser, live, URL_ } from "./server-under-test.mjs";

const EVIL = `<img src=x onerror="window.broken=1">`;
const vector = (result) => ({
  status: "success",
  data: { resultType: "vector", result },
});
const sample = (name, labels, value = 1) => ({
  metric: { __name__: `gpuscope_slurm_${name}`, ...labels },
  value: [Date.now() / 1000, String(value)],
});

/** Opens a view with some answers replaced: by JSON, or by what a function does with the route. */
const openWith = (address, answers, change) =>
  open(browser, URL_ + address, {
    before: async (page) => {
      if (change) await freeze(page, URL_, change);
      for (const [path, answer] of Object.entries(answers))
        await page.route(`**/${path}`, (route) =>
          typeof answer === "function"
            ? answer(route)
            : route.fulfill({ json: answer }),
        );
    },
  });
const close = async (page) => {
  assert.deepEqual(page.problems, []);
  await page.context().close();
};
const nothing = { status: "success", data: { groups: [], alerts: [] } };
/** One firing alert, whatever the demo is doing. */
const firing = (name, instance, annotations) => ({
  "api/v1/alerts": {
    data: {
      alerts: [
        {
          labels: { alertname: name, severity: "warning", instance },
          annotations,
          state: "firing",
          activeAt: new Date().toISOString(),
          value: "1",
        },
      ],
    },
  },
  "api/v2/alerts": [],
});
const session = (role) => ({
  "api/session": { user: "ann", via: "session", role },
});

test("without Slurm, Kubernetes, rules, channels or findings each view says so and what to do", async () => {
  const empty = [
    ["#/slurm", /No agent reads Slurm.*--slurm commands/s],
    ["#/kubernetes", /No pod is on a GPU.*gpuscope doctor/s],
    ["#/alerts", /No alerting rules are loaded.*--rules.*Nothing fires\./s],
    ["#/alerts?tab=sent", /No message was sent yet\..*No channel is set up/s],
    ["#/settings?tab=rules", /No alerting rules are loaded/],
    ["#/settings?tab=channels", /No channel is set up.*--notify/s],
    ["#/settings", /There is no target\. Add a node\./],
    ["#/settings?tab=audit", /Nothing was changed yet\./],
    ["#/findings", /Nothing needs you/],
  ];
  const page = await openWith(
    empty[0][0],
    {
      "api/v1/query?*": vector([]),
      "api/v1/alerts": nothing,
      "api/v1/rules?*": nothing,
      "api/v1/targets?*": { status: "success", data: { activeTargets: [] } },
      "api/v2/alerts": [],
      "api/notify": { channels: [] },
      "api/notifications?*": { notifications: [] },
      "api/audit": { entries: [] },
    },
    (picture) => ({ ...picture, sessions: [], findings: [] }),
  );
  for (const [address, text] of empty) {
    await go(page, address);
    await page.waitForFunction(
      ([source, flags]) =>
        new RegExp(source, flags).test(
          document.querySelector("main").innerText,
        ),
      [text.source, text.flags],
    );
  }
  await close(page);
});

test("a viewer is offered no silence and no change, and reads which role it needs", async () => {
  const hot = firing("GpuHot", live.nodes[0].instance, { summary: "hot" });
  const silence = 'main button:text-is("Silence")';
  const editor = await openWith("#/alerts", { ...hot, ...session("editor") });
  await editor.waitForSelector(silence);
  await close(editor);
  const page = await openWith("#/alerts", { ...hot, ...session("viewer") });
  await page.waitForSelector("[data-alert] li");
  assert.equal(await page.locator(silence).count(), 0);
  for (const [address, role] of [
    ["#/alerts?tab=silenced", "editor"],
    ["#/settings?tab=channels", "editor"],
    ["#/settings?tab=add", "admin"],
    ["#/settings?tab=users", "admin"],
    ["#/settings?tab=audit", "admin"],
  ]) {
    await go(page, address);
    await page.waitForSelector(
      `text=This needs the role ${role}; you have the role viewer.`,
    );
    const tabs = page.locator("main .segments [aria-pressed=true]");
    assert.equal(await tabs.count(), 1, address);
  }
  await close(page);
});

test("a silence that the server refuses stays in its dialog, with the server's sentence", async () => {
  const page = await openWith("#/alerts", {
    ...firing("GpuHot", live.nodes[0].instance, { summary: "hot" }),
    ...session("editor"),
    "api/v2/silences": (route) =>
      route.request().method() === "POST"
        ? route.fulfill({
            status: 403,
            json: { status: "error", error: `no longer an editor ${EVIL}` },
          })
        : route.fallback(),
  });
  await page.locator('main button:text-is("Silence")').first().click();
  await page.fill("dialog [name=comment]", "known");
  await page.click("dialog button[type=submit]");
  await page.waitForSelector("dialog [role=alert] >> text=no longer an editor");
  assert.equal(await page.inputValue("dialog [name=comment]"), "known");
  assert.equal(await page.locator("dialog img").count(), 0);
  await close(page);
});

test("markup in the names of jobs, users, pods, alerts and reports is shown as text", async () => {
  const job = { slurm_job: "7", name: EVIL, user: EVIL, account: EVIL };
  const slurm = vector([
    sample("up", {}),
    sample("job_info", { ...job, partition: EVIL }),
    sample("job_gpus", { slurm_job: "7" }, 2),
    sample("partition_pending_jobs", { partition: EVIL, reason: EVIL }, 3),
    sample("node_state", { node: EVIL, state: "down" }),
    sample("node_reason_info", { node: EVIL, reason: EVIL, user: EVIL }),
    sample("reservation_info", { reservation: EVIL, users: EVIL }),
  ]);
  const annotations = {
    summary: EVIL,
    runbook_url: "javascript:window.broken=1",
  };
  const report = await (
    await fetch(`${URL_}api/report?kind=usage&by=user&start=${live.now - 3600}`)
  ).json();
  const evil = (picture) => ({
    ...picture,
    sessions: picture.sessions.map((one) => ({
      ...one,
      namespace: EVIL,
      pod: EVIL,
      container: EVIL,
    })),
    findings: picture.findings.map((one) => ({ ...one, node: EVIL })),
  });
  const page = await openWith(
    "#/slurm?tab=running",
    {
      "api/v1/query?*": (route) =>
        route.request().url().includes("gpuscope_slurm_")
          ? route.fulfill({ json: slurm })
          : route.fallback(),
      ...firing(EVIL, EVIL, annotations),
      "api/report?*": {
        ...report,
        rows: report.rows.map((one) => ({ ...one, name: EVIL })),
        missing: [`${EVIL}: 3.0 GPU-hours lost`],
      },
    },
    evil,
  );
  for (const [address, place] of [
    ["#/slurm?tab=running", "td[data-column=user]"],
    ["#/slurm?tab=nodes", "td[data-column=reason]"],
    ["#/kubernetes", "td[data-column=pod]"],
    ["#/findings", "td[data-column=what]"],
    ["#/alerts", "[data-alert] h2"],
    ["#/reports?since=1d", "td[data-column=name]"],
  ]) {
    await go(page, address);
    await page.waitForSelector(`${place} >> bdi >> text=onerror`);
    assert.ok((await page.textContent("main")).includes(EVIL), address);
    const made = "main img, main script, main a[href^='javascript']";
    assert.equal(await page.locator(made).count(), 0, address);
    assert.equal(await page.evaluate(() => window.broken), undefined, address);
  }
  await close(page);
});

test("a view that gets no answer says which and why, and recovers when asked again", async () => {
  let isAway = true;
  const away = (route) => (isAway ? route.abort() : route.fallback());
  const views = [
    ["#/slurm", "api/v1/query?*", "Slurm", "td[data-column=reason]"],
    ["#/kubernetes", "api/v1/query?*", "Kubernetes", "td[data-column=pod]"],
    ["#/alerts", "api/v1/alerts", "Alerts", "[data-alert], main p.soft"],
    ["#/findings?since=1d", "api/findings?*", "Findings", "td"],
    ["#/reports?since=1d", "api/report?*", "Reports", "td"],
    ["#/settings", "api/v1/targets?*", "Targets", "td"],
    ["#/settings?tab=rules", "api/v1/rules?*", "Rules", "td"],
  ];
  const page = await openWith(
    views[0][0],
    Object.fromEntries(views.map(([, path]) => [path, away])),
  );
  for (const [address, , what, shown] of views) {
    isAway = true;
    await go(page, address);
    const problem = page.locator("main [role=alert]", {
      hasText: `${what} cannot be shown:`,
    });
    await problem.first().waitFor();
    isAway = false;
    await problem.first().getByRole("button").click();
    await problem.first().waitFor({ state: "detached" });
    await page.waitForSelector(shown);
  }
  await close(page);
});
