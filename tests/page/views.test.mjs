// Every view of the page in a real browser over a real demo server; numbers on screen against the API's.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { axeFindings, freeze, go, open, query } from "./browser.mjs";
import { boards, browser, live, URL_ } from "./server-under-test.mjs";

const settled = (page) =>
  page.waitForFunction(
    () =>
      !document.querySelector(".loading") &&
      document.querySelector(".panel canvas"),
  );
const views = () => ({
  fleet: "#/fleet",
  node: `#/node/${live.nodes[0].name}?from=now-3h`,
  gpu: `#/gpu/${boards()[0].uuid}?from=now-3h`,
  sessions: "#/sessions",
  explore: "#/explore?q=gpuscope_gpu_power_watts&from=now-1h",
});

test("the fleet shows what the API says, GPU by GPU", async () => {
  let picture;
  const page = await open(browser, URL_, {
    before: async (one) => {
      picture = await freeze(one, URL_);
    },
  });
  await page.waitForSelector("[data-total=gpus]");
  const shown = async (name) =>
    Number.parseFloat(await page.textContent(`[data-total=${name}]`));
  const whole = picture.gpus.filter((gpu) => !gpu.parent);
  assert.equal(await shown("gpus"), whole.length);
  assert.equal(
    await shown("lost"),
    whole.filter((gpu) => gpu.state === "lost").length,
  );
  const watts = whole.reduce((sum, gpu) => sum + (gpu.power ?? 0), 0);
  assert.ok(
    Math.abs((await shown("power")) * 1000 - watts) <= 5,
    `power ${await shown("power")} kW, ${watts} W`,
  );
  for (const gpu of picture.gpus) {
    const cell = page.locator(`a.cell[data-uuid="${gpu.uuid}"]`);
    if (picture.gpus.some((other) => other.parent === gpu.uuid)) continue;
    const percent = Math.round((gpu.busy ?? gpu.sm) * 100);
    assert.equal(await cell.getAttribute("data-s"), gpu.state);
    if ((gpu.busy ?? gpu.sm) * 100 >= 1)
      assert.ok((await cell.textContent()).includes(`${percent} %`), gpu.uuid);
  }
  await page.click("text=Temperature");
  assert.match(page.url(), /m=temperature/);
  const hot = whole.find(
    (gpu) =>
      gpu.temperature !== undefined &&
      !picture.gpus.some((other) => other.parent === gpu.uuid),
  );
  assert.ok(
    (await page.textContent(`a.cell[data-uuid="${hot.uuid}"]`)).includes(
      `${Math.round(hot.temperature)} °C`,
    ),
  );
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("one count everywhere: totals, legend and cells", async () => {
  let picture;
  const page = await open(browser, URL_, {
    before: async (one) => {
      picture = await freeze(one, URL_);
    },
  });
  await page.waitForSelector("[data-total=held-idle]");
  const split = new Set(picture.gpus.map((gpu) => gpu.parent));
  assert.ok(split.size > 1, "the demo has MIG instances");
  const held = picture.gpus.filter(
    (gpu) => gpu.state === "held" && !split.has(gpu.uuid),
  ).length;
  assert.ok(held > 0);
  assert.equal(
    Number.parseFloat(await page.textContent("[data-total=held-idle]")),
    held,
  );
  const legend = page.locator(".legend button", { hasText: "held, idle" });
  assert.equal(
    Number.parseFloat(await legend.locator(".soft").textContent()),
    held,
  );
  assert.equal(await page.locator('a.cell[data-s="held"]').count(), held);
  await page.context().close();
});

test("a number that is absent is not drawn as a zero", async () => {
  const [zero, absent] = boards();
  const page = await open(browser, URL_, {
    before: (one) =>
      freeze(one, URL_, (picture) => {
        for (const gpu of picture.gpus)
          if ([zero.uuid, absent.uuid].includes(gpu.uuid))
            Object.assign(gpu, { state: "busy", sm: 0.5, tensor: 0 });
        const without = picture.gpus.find((gpu) => gpu.uuid === absent.uuid);
        delete without.tensor;
        delete without.busy;
        delete without.sm;
        Object.assign(without, { tensor: 0.25 });
        return picture;
      }),
  });
  const cell = (gpu) => page.locator(`a.cell[data-uuid="${gpu.uuid}"]`);
  await cell(zero).waitFor();
  assert.equal(await cell(zero).locator(".truth i").count(), 2);
  assert.equal(await cell(zero).locator(".truth i.absent").count(), 0);
  assert.equal(await cell(absent).locator(".truth i.absent").count(), 1);
  assert.equal(await cell(absent).locator(".level").count(), 0);
  assert.ok((await cell(absent).textContent()).includes("–"));
  await page.context().close();
});

test("search and state filters say how many match and stand in the address", async () => {
  const page = await open(browser, `${URL_}#/fleet?q=${live.nodes[1].name}`);
  await page.waitForSelector(".node");
  assert.equal(await page.locator(".node").count(), 1);
  await page.fill("#search", "no such thing");
  await page.waitForSelector("text=No GPU matches this filter.");
  await page.click("text=Clear filter");
  await page.waitForFunction(
    (count) => document.querySelectorAll(".node").length === count,
    live.nodes.length,
  );
  await page.context().close();
});

test("one GPU works, the others do nothing: said without a click", async () => {
  const page = await open(browser, URL_);
  await page.waitForSelector("text=/only GPU 0 works/");
  assert.ok(
    await page
      .locator(".finding", { hasText: "works on GPU 0 only" })
      .locator("text=torchrun")
      .count(),
  );
  await page.context().close();
});

test("every view opens without an error and with drawn panels, fits a phone, and axe finds nothing", async () => {
  const page = await open(browser, URL_);
  const titles = {
    fleet: "Fleet",
    node: live.nodes[0].name,
    gpu: `GPU ${boards()[0].gpu}`,
    sessions: "Sessions",
    explore: "Explore",
  };
  for (const [name, address] of Object.entries(views())) {
    await page.setViewportSize({ width: 1440, height: 900 });
    await go(page, address);
    await page.locator("h1", { hasText: titles[name] }).waitFor({
      state: "attached",
    });
    if (["node", "gpu", "explore"].includes(name)) await settled(page);
    assert.equal(await page.locator(".failed").count(), 0, name);
    assert.deepEqual(await axeFindings(page), [], name);
    await page.setViewportSize({ width: 390, height: 844 });
    // A chart is drawn anew a frame after the window changes. What stays too wide is named below.
    await page
      .waitForFunction(
        () => document.documentElement.scrollWidth <= 390,
        null,
        {
          timeout: 5000,
        },
      )
      .catch(() => undefined);
    const wide = await page.evaluate(
      () => document.documentElement.scrollWidth,
    );
    assert.ok(wide <= 390, `${name} is ${wide} px wide`);
    assert.deepEqual(page.problems, [], name);
  }
  await page.context().close();
});

test("dark colours have enough contrast", async () => {
  // Dark differs in colours only, which two views show all of.
  for (const name of ["fleet", "gpu"]) {
    const page = await open(browser, URL_ + views()[name], {
      colorScheme: "dark",
    });
    await page.waitForSelector("h1");
    if (name === "gpu") await settled(page);
    assert.deepEqual(await axeFindings(page, ["color-contrast"]), [], name);
    await page.context().close();
  }
});

test("a panel's newest value is the store's", async () => {
  const [gpu] = boards();
  const page = await open(browser, `${URL_}#/gpu/${gpu.uuid}?from=now-15m`);
  await page.waitForSelector("[data-panel=gpu_memory] table", {
    state: "attached",
  });
  const total = await page.textContent(
    "[data-panel=gpu_memory] tbody tr:last-child td:nth-child(2)",
  );
  const [{ value }] = await query(
    URL_,
    `gpuscope_gpu_memory_total_bytes{uuid="${gpu.uuid}"}`,
  );
  assert.equal(total, `${(Number(value[1]) / 2 ** 30).toFixed(1)} GiB`);
  await page.context().close();
});

test("dragging zooms all panels, the address keeps it, and back undoes it", async () => {
  const page = await open(browser, `${URL_}${views().node}`);
  await settled(page);
  const drawn = page.locator("[data-panel=node_utilization] .u-over");
  await drawn.scrollIntoViewIfNeeded();
  const chart = await drawn.boundingBox();
  await page.mouse.move(chart.x + chart.width * 0.3, chart.y + 40);
  await page.mouse.down();
  await page.mouse.move(chart.x + chart.width * 0.6, chart.y + 40, {
    steps: 5,
  });
  await page.mouse.up();
  await page.waitForFunction(() => /from=\d+/.test(location.hash));
  const { from, to } = Object.fromEntries(
    new URLSearchParams(page.url().split("?")[1]),
  );
  assert.ok(
    Math.abs(Number(to) - Number(from) - 0.3 * 3 * 3600) < 400,
    `${to - from}`,
  );
  const label = await page.textContent("[data-range]");
  const again = await open(browser, page.url());
  await again.waitForSelector("[data-range]");
  assert.equal(await again.textContent("[data-range]"), label);
  await page.goBack();
  await page.waitForFunction(() => location.hash.includes("now-3h"));
  await page.waitForSelector("text=Last 3h");
  await again.context().close();
  await page.context().close();
});

test("the cursor stands at the same time on all panels", async () => {
  const page = await open(browser, `${URL_}${views().node}`);
  await settled(page);
  await page
    .locator("[data-panel=node_utilization] .u-over")
    .hover({ position: { x: 120, y: 60 } });
  await page.waitForFunction(() => {
    const at = (id) =>
      document.querySelector(`[data-panel=${id}] .u-cursor-x`)?.style.transform;
    return at("node_utilization") && at("node_utilization") === at("node_sm");
  });
  await page.context().close();
});

test("sessions are the API's, grouped, and exported as CSV and JSON", async () => {
  let picture;
  const page = await open(browser, `${URL_}#/sessions?by=none`, {
    before: async (one) => {
      picture = await freeze(one, URL_);
    },
  });
  await page.waitForSelector("tbody tr");
  assert.equal(await page.locator("tbody tr").count(), picture.sessions.length);
  const saved = async (name) => {
    const [download] = await Promise.all([
      page.waitForEvent("download"),
      page.click(`text="${name}"`),
    ]);
    return readFileSync(await download.path(), "utf-8");
  };
  assert.equal(
    (await saved("CSV")).trim().split("\r\n").length,
    picture.sessions.length + 1,
  );
  assert.equal(JSON.parse(await saved("JSON")).length, picture.sessions.length);
  await page.click("th >> text=Memory");
  assert.match(page.url(), /sort=memory/);
  await page.context().close();
});

test("Explore completes, runs, and tables what the API answers", async () => {
  const page = await open(browser, `${URL_}#/explore`);
  await page.fill("textarea", "");
  await page.locator("textarea").pressSequentially("gpuscope_gpus_se");
  await page.waitForSelector("#choices-search >> text=gpuscope_gpus_seen");
  await page.keyboard.press("Enter");
  assert.equal(await page.inputValue("textarea"), "gpuscope_gpus_seen");
  await page.locator("textarea").pressSequentially("{inst");
  await page.waitForSelector("#choices-search >> text=instance");
  await page.keyboard.press("Escape");
  await page.fill("textarea", "gpuscope_gpus_seen");
  await page.click("text=Run");
  await page.click('text="Table"');
  await page.waitForSelector("td.number");
  const shown = await page.locator("td.number").allTextContents();
  assert.deepEqual(
    shown,
    (await query(URL_, "gpuscope_gpus_seen")).map((one) => one.value[1]),
  );
  await page.fill("textarea", "sum(");
  await page.click("text=Run");
  await page.waitForSelector("[role=alert]");
  await page.context().close();
});

test("a panel opens its PromQL in Explore", async () => {
  const page = await open(browser, `${URL_}${views().gpu}`);
  await settled(page);
  await page.click("[data-panel=gpu_power] >> text=PromQL");
  await page.waitForSelector("textarea");
  assert.match(
    await page.inputValue("textarea"),
    /avg_over_time\(gpuscope_gpu_power_watts\{uuid="/,
  );
  await page.context().close();
});

test("languages switch at once and are remembered", async () => {
  const page = await open(browser, URL_);
  for (const [code, word] of [
    ["ko", "세션"],
    ["ja", "セッション"],
    ["zh", "会话"],
  ]) {
    await page.selectOption("select >> nth=1", code);
    await page.waitForSelector(`nav >> text=${word}`);
    assert.equal(await page.getAttribute("html", "lang"), code);
  }
  await page.reload();
  await page.waitForSelector("nav >> text=会话");
  await page.context().close();
});

test("keys move over the map and between views", async () => {
  const page = await open(browser, URL_);
  await page.waitForSelector("a.cell[tabindex='0']");
  await page.focus("a.cell[tabindex='0']");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  const name = await page.evaluate(() => document.activeElement.textContent);
  assert.match(name, new RegExp(`^${live.nodes[1].name} .*GPU 1`));
  await page.keyboard.press("?");
  await page.waitForSelector("dialog[open]");
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("s");
  await page.waitForSelector("text=/processes on/");
  await page.keyboard.press("f");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  await page.context().close();
});

test("the time picker opens inside the window", async () => {
  const page = await open(browser, URL_);
  for (const [address, shown] of [
    [`#/node/${live.nodes[0].name}`, `h1 >> text=${live.nodes[0].name}`],
    [`#/gpu/${live.gpus[0].uuid}`, `h1 >> text=GPU ${live.gpus[0].gpu}`],
    ["#/explore?q=up", "textarea"],
  ]) {
    await go(page, address);
    await page.waitForSelector(shown);
    await page.click("[data-range]");
    const box = await page.locator(".popover").boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 1440, `${address}: ${box.x}`);
  }
  await page.context().close();
});

test("no number of a cell is cut off, MIG and memory included", async () => {
  const page = await open(browser, URL_);
  for (const measure of ["busy", "memory"]) {
    await go(page, `#/fleet?m=${measure}`);
    await page.waitForSelector(`[data-measure=${measure}] a.cell .value`);
    const cut = await page.evaluate(() =>
      [...document.querySelectorAll("a.cell")]
        .map((cell) => [
          cell.getBoundingClientRect(),
          cell.querySelector(".value"),
        ])
        .filter(([box, value]) => {
          const inner = value.getBoundingClientRect();
          return (
            inner.left < box.left ||
            inner.right > box.right + 0.5 ||
            inner.bottom > box.bottom + 0.5
          );
        })
        .map(([, value]) => value.textContent),
    );
    assert.deepEqual(cut, []);
  }
  await page.context().close();
});

test("a long table of sessions comes in pieces", async () => {
  const page = await open(browser, `${URL_}#/sessions?by=none`, {
    before: (shown) =>
      freeze(shown, URL_, (picture) => {
        const [one] = picture.sessions;
        picture.sessions = Array.from({ length: 950 }, (_, at) => ({
          ...one,
          pid: at + 1,
        }));
        return picture;
      }),
  });
  await page.waitForSelector("td");
  const rows = () => page.locator("tbody tr:not(.group)").count();
  assert.equal(await rows(), 100);
  await page.click("text=Show 100 more of 850");
  assert.equal(await rows(), 200);
  await page.context().close();
});

test("a GPU has the names it goes by at the rack", async () => {
  const gpu = live.gpus.find((one) => !one.parent);
  const [{ metric }] = await query(
    URL_,
    `gpuscope_gpu_info{uuid="${gpu.uuid}"}`,
  );
  const page = await open(browser, URL_ + `#/gpu/${gpu.uuid}`);
  await page.waitForFunction(
    (serial) =>
      document.querySelector(".identity")?.textContent.includes(serial),
    metric.serial,
  );
  const shown = await page.textContent(".identity");
  for (const name of ["pci_bus_id", "vbios_version", "driver_version"])
    assert.ok(shown.includes(metric[name]), name);
  await page.context().close();
});
