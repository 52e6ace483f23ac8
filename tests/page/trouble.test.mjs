// What the page shows when things go wrong: hostile names, nothing to show, a wrong clock, a failing query, no server.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  dataFolder,
  freePort,
  freeze,
  go,
  logIn,
  open,
  openAsFirstUser,
  startServer,
} from "./browser.mjs";
import { browser, live, URL_ } from "./server-under-test.mjs";

const opened = (address, change, options = {}) =>
  open(browser, URL_ + address, {
    ...options,
    before: (page) => freeze(page, URL_, change),
  });

test("names from outside are text, whatever they hold", async () => {
  const evil = `<img src=x onerror="window.broken=1">`;
  const turned = "\u202egnp.exe";
  const page = await opened("#/fleet", (picture) => {
    picture.nodes[0].name = evil;
    for (const gpu of picture.gpus)
      if (gpu.node === live.nodes[0].name)
        Object.assign(gpu, { node: evil, users: [turned], model: "<b>x</b>" });
    for (const one of picture.sessions)
      Object.assign(one, {
        user: turned,
        command: evil,
        pod: "<script>window.broken=1</script>",
      });
    return picture;
  });
  await page.waitForSelector("a.cell");
  assert.ok((await page.textContent(".map")).includes(evil));
  assert.equal(
    await page
      .locator("main img, main script, main b:has-text('x') >> text=/^x$/")
      .count(),
    0,
  );
  assert.ok(
    await page.locator("bdi", { hasText: "<script>" }).count(),
    "the pod is the holder, not the user inside its container",
  );
  await page.locator(".node h2 a", { hasText: "onerror" }).click();
  await page.waitForSelector("h1 >> text=onerror");
  await page.goto(`${URL_}#/sessions`);
  await page.waitForSelector("td >> text=onerror");
  assert.ok(await page.locator("bdi", { hasText: "gnp.exe" }).count());
  assert.equal(await page.evaluate(() => window.broken), undefined);
  await page.context().close();
});

test("no GPU, no node, one GPU: each has its own picture", async () => {
  const none = await opened("", (picture) => ({
    ...picture,
    gpus: [],
    sessions: [],
  }));
  await none.waitForSelector("text=gpuscope doctor");
  await none.context().close();
  const empty = await opened("", (picture) => ({
    ...picture,
    nodes: [],
    gpus: [],
    sessions: [],
  }));
  await empty.waitForSelector("text=No node has reported yet.");
  await empty.context().close();
  const one = await opened("", (picture) => ({
    ...picture,
    nodes: picture.nodes.slice(0, 1),
    gpus: picture.gpus.slice(0, 1),
    sessions: [],
  }));
  await one.waitForSelector("a.cell");
  assert.equal(await one.locator("a.cell").count(), 1);
  assert.deepEqual(one.problems, []);
  await one.context().close();
});

test("every state is told apart without colour", async () => {
  const states = ["busy", "idle", "held", "throttled", "sick", "lost", "stale"];
  const page = await opened("", (picture) => {
    states.forEach((state, place) =>
      Object.assign(picture.gpus[place], {
        state,
        why: state === "sick" ? "XID 79" : "",
      }),
    );
    return picture;
  });
  await page.waitForSelector('a.cell[data-s="lost"]');
  const looks = await page.evaluate(
    (names) =>
      names.map((state) => {
        const cell = document.querySelector(`a.cell[data-s="${state}"]`);
        const style = getComputedStyle(cell);
        const shape = style.backgroundImage.replace(
          /(rgba?|oklch|color)\([^)]*\)/g,
          "",
        );
        return [
          cell.querySelector(".glyph")?.textContent ?? "",
          style.borderStyle,
          style.borderWidth,
          shape !== "none",
          state === "busy" || state === "idle" ? state : "",
        ].join();
      }),
    states,
  );
  assert.equal(new Set(looks).size, states.length, looks.join("\n"));
  // What is wrong is the server's word: a changed state alone makes no finding.
  assert.equal(await page.locator(".finding[data-kind=gpu_lost]").count(), 0);
  await page.context().close();
});

test("a wrong clock is said, and history is still found", async () => {
  const page = await opened(
    `#/node/${live.nodes[0].name}?from=now-1h`,
    (picture) => ({ ...picture, skew: 7200 }),
  );
  await page.waitForSelector("text=/This browser's clock is 2 h off/");
  await page.context().close();
});

test("a failing query shows in its panel alone", async () => {
  const page = await open(browser, `${URL_}#/gpu/${live.gpus[0].uuid}`, {
    before: (one) =>
      one.route(/query_range.*power_watts/, (route) =>
        route.fulfill({
          status: 422,
          json: { status: "error", error: "too many <b>samples</b>" },
        }),
      ),
  });
  await page.waitForSelector("[data-panel=gpu_power] [role=alert]");
  assert.ok(
    (await page.textContent("[data-panel=gpu_power]")).includes(
      "too many <b>samples</b>",
    ),
  );
  await page.waitForSelector("[data-panel=gpu_memory] canvas");
  assert.equal(await page.locator("[role=alert]").count(), 1);
  await page.context().close();
});

test("a slow query keeps nobody else waiting", async () => {
  const page = await open(browser, `${URL_}#/gpu/${live.gpus[0].uuid}`, {
    before: (one) => one.route(/query_range.*power_watts/, () => undefined),
  });
  await page.waitForSelector("[data-panel=gpu_memory] canvas");
  assert.ok(
    await page.locator("[data-panel=gpu_power] >> text=Loading").count(),
  );
  await page.context().close();
});

test("a login is asked for when the server wants one, with its words", async () => {
  let inside = false;
  const page = await open(browser, URL_, {
    before: async (one) => {
      await one.route("**/api/live/stream", (route) =>
        inside
          ? route.fallback()
          : route.fulfill({
              status: 401,
              json: { login: true, setup: true, error: "log in" },
            }),
      );
      await one.route("**/api/login", (route) => {
        inside = route.request().postDataJSON().token === "right";
        return route.fulfill(
          inside
            ? { json: {} }
            : {
                status: 401,
                json: {
                  login: true,
                  setup: true,
                  error: "this token is <b>wrong</b>",
                },
              },
        );
      });
    },
  });
  await page.fill("[name=token]", "wrong");
  await page.fill("[name=user]", "ada");
  await page.fill("[name=password]", "a long password");
  await page.click("button[type=submit]");
  await page.waitForSelector("text=this token is <b>wrong</b>");
  await page.fill("[name=token]", "right");
  await page.click("button[type=submit]");
  await page.waitForSelector("a.cell");
  await page.context().close();
});

test("off this machine: the printed token makes the first user, who logs out and in again and adds a viewer", async () => {
  const data = dataFolder();
  const server = await startServer({
    port: await freePort(),
    data: data.folder,
    address: "0.0.0.0",
  });
  try {
    const page = await openAsFirstUser(
      browser,
      server,
      "ada",
      "correct horse battery",
    );
    await page.click("text=Log out ada");
    await page.waitForSelector("[name=password]");
    assert.equal(
      await page.locator("[name=token]").count(),
      0,
      "the token is spent",
    );
    for (const [password, seen] of [
      ["wrong", "text=That was not right."],
      ["correct horse battery", "a.cell"],
    ]) {
      await logIn(page, "ada", password);
      await page.waitForSelector(seen);
    }
    await go(page, "#/settings?tab=users");
    await page.fill("form [name=name] >> nth=0", "vic");
    await page.fill("form [name=password]", "only looking here");
    await page.selectOption("form [name=role]", "viewer");
    await page.click("form:has([name=password]) button[type=submit]");
    await page.waitForSelector("td[data-column=name] >> text=vic");
    await go(page, "#/settings?tab=audit");
    await page.waitForSelector("td >> text=POST /api/users");
    await page.click("text=Log out ada");
    await logIn(page, "vic", "only looking here");
    await go(page, "#/alerts?tab=silenced");
    await page.waitForSelector("text=This needs the role editor");
    // A silence that is sent anyway is refused.
    const refusal = await page.evaluate(async () => {
      const answer = await fetch("api/v2/silences", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: "{}",
      });
      return `${answer.status} ${(await answer.json()).error}`;
    });
    assert.equal(
      refusal,
      "403 this request requires the role editor; vic has the role viewer",
    );
    assert.deepEqual(page.problems, []);
    await page.context().close();
  } finally {
    await server.stop();
    data.remove();
  }
});

test("the server goes and comes back: greyed, aged, recovered by itself", async () => {
  const port = await freePort();
  const data = dataFolder();
  const settings = { port, data: data.folder };
  let server = await startServer(settings);
  try {
    const page = await open(browser, server.url);
    await page.waitForSelector("a.cell");
    await server.stop("SIGKILL");
    await page.waitForSelector(".strip.gone");
    assert.equal(
      await page.locator("a.cell").count(),
      2,
      "the last picture stays",
    );
    assert.notEqual(
      await page.evaluate(
        () => getComputedStyle(document.querySelector("main .data")).filter,
      ),
      "none",
    );
    server = await startServer(settings);
    await page.waitForSelector(".strip.gone", { state: "detached" });
    await page.waitForSelector(".age[data-fresh=true]");
    assert.deepEqual(page.problems, []);
    await page.context().close();
  } finally {
    await server.stop();
    data.remove();
  }
});

test("what is gone stays on the map and says since when and why", async () => {
  const since = Date.now() / 1000 - 300;
  const error = "connection refused <b>by</b> 10.0.0.7";
  const page = await opened("#/fleet", (picture) => {
    const [first] = picture.nodes;
    const gone = { since, why: error, answered: true };
    // As the server sends it: no numbers.
    picture.nodes[0] = {
      name: first.name,
      instance: first.instance,
      sources: [],
      stale: true,
      gone,
    };
    picture.nodes.push({
      name: "never:9400",
      instance: "never:9400",
      sources: [],
      stale: true,
      gone: { since, why: "no such host", answered: false },
    });
    picture.gpus = picture.gpus.map((gpu) =>
      gpu.node === first.name
        ? {
            uuid: gpu.uuid,
            gpu: gpu.gpu,
            node: gpu.node,
            model: gpu.model,
            state: "gone",
            since,
            why: error,
            users: [],
            processes: 0,
          }
        : gpu,
    );
    picture.sessions = picture.sessions.filter(
      (one) => one.node !== first.name,
    );
    const finding = (kind, node, why_key, why) => ({
      id: node,
      kind,
      severity: "critical",
      node,
      gpus: [],
      uuids: [],
      owner: { kind: "none", namespace: "", name: "", user: "" },
      since,
      until: null,
      cost_gpu_hours: null,
      why,
      why_key,
      args: { error: why },
      next: "check it",
      next_key: kind,
      evidence: "up == 0",
    });
    picture.findings = [
      finding(
        "node_down",
        first.name,
        "node_down",
        `No data from this node: ${error}`,
      ),
      finding(
        "node_down",
        "never:9400",
        "node_down.never",
        "This target has never answered: no such host",
      ),
      finding("target_down", "exporter:9100", "target_down", "timeout"),
    ];
    picture.targets = [
      { job: "j", instance: first.instance, url: "", ...gone },
      {
        job: "j",
        instance: "exporter:9100",
        url: "",
        since,
        why: "timeout",
        answered: true,
      },
    ];
    return picture;
  });
  const name = live.nodes[0].name;
  await page.waitForSelector(`.finding:has-text("${name}")`);
  const findings = await page.locator(".finding").allTextContents();
  const about = (text) => findings.filter((one) => one.includes(text));
  assert.equal(about("No data from this node").length, 1);
  assert.ok(about(name)[0].includes(error), "the error, as text");
  assert.match(about(name)[0], /5 min/);
  assert.equal(about("never answered").length, 1);
  assert.equal(about("exporter:9100").length, 1);
  const boards = live.gpus.filter((gpu) => gpu.node === name && !gpu.parent);
  assert.equal(
    await page.textContent('[data-total="gone"]').then(Number),
    boards.length,
  );
  assert.ok(
    (await page.textContent(".map")).includes("never answered, tried since"),
  );
  assert.equal(await page.locator('a.cell[data-s="gone"] .truth').count(), 0);
  await page.goto(`${URL_}#/node/${name}`);
  await page.waitForSelector(".facts");
  await page.goto(`${URL_}#/node/never:9400`);
  await page.waitForSelector(".finding");
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("without a GPU the page says why, in the words of the log", async () => {
  const page = await open(browser, URL_, {
    before: async (shown) => {
      await freeze(shown, URL_, (picture) => ({
        ...picture,
        gpus: [],
        sessions: [],
      }));
      await shown.route("**/api/v1/targets*", (route) =>
        route.fulfill({
          json: {
            status: "success",
            data: {
              activeTargets: [
                {
                  labels: { instance: "n" },
                  lastError:
                    "nvml: no driver; install it; nvidia-smi: not there",
                },
              ],
            },
          },
        }),
      );
    },
  });
  await page.waitForSelector(".reasons li");
  assert.deepEqual(await page.locator(".reasons li").allTextContents(), [
    "nvml: no driver; install it",
    "nvidia-smi: not there",
  ]);
  await page.context().close();
});
