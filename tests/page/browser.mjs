// What the page's tests share: a real Chromium, a real `gpuscope up --demo`, and the live answer held still so that
// numbers on screen can be compared with it.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AXE, launch } from "../../web/scripts/chromium.mjs";

export { launch };
const GPUSCOPE = process.env.GPUSCOPE_COMMAND ?? "gpuscope";

/** A page that remembers what went wrong on it: errors, and anything the content security policy stopped. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({
    viewport: { width: 1440, height: 900 },
    locale: "en",
    ...options,
  });
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(error.message));
  page.on("console", (message) => {
    // A query that is made to fail is logged by the browser itself.
    if (
      message.type() === "error" &&
      !message.text().startsWith("Failed to load resource")
    )
      page.problems.push(message.text());
  });
  if (options.before) await options.before(page);
  await page.goto(url);
  return page;
}

export async function freePort() {
  const probe = createServer();
  await new Promise((done) => probe.listen(0, "127.0.0.1", done));
  const { port } = probe.address();
  await new Promise((done) => probe.close(done));
  return port;
}

export function dataFolder() {
  const folder = mkdtempSync(join(tmpdir(), "gpuscope-page-"));
  return {
    folder,
    remove: () => rmSync(folder, { recursive: true, force: true }),
  };
}

/** `up --demo` of one small node, once it answers. */
export async function startServer({ port, data, address = "127.0.0.1" }) {
  const child = spawn(
    GPUSCOPE,
    [
      ..."up --demo --demo-nodes 1 --demo-gpus 2 --data".split(" "),
      ...[data, "--listen", `${address}:${port}`],
    ],
    { stdio: ["ignore", "ignore", "pipe"] },
  );
  let log = "";
  child.stderr.on("data", (bytes) => {
    log += bytes;
  });
  const ended = new Promise((done) => child.once("exit", done));
  const url = `http://127.0.0.1:${port}/`;
  for (;;) {
    if (child.exitCode !== null) throw new Error(`gpuscope ended: ${log}`);
    const ready = await fetch(`${url}-/ready`).then(
      (answer) => answer.ok,
      () => false,
    );
    if (ready) break;
    await new Promise((done) => setTimeout(done, 200));
  }
  return {
    url,
    log: () => log,
    stop: async (signal = "SIGTERM") => {
      child.kill(signal);
      await ended;
    },
  };
}

export async function logIn(page, user, password) {
  await page.fill("[name=user]", user);
  await page.fill("[name=password]", password);
  await page.click("button[type=submit]");
}

/** Opens the page of a new server and makes its first user, an admin, with the token that the server printed. */
export async function openAsFirstUser(browser, server, user, password) {
  const page = await open(browser, server.url);
  await page.fill("[name=token]", /token: (\S+)/.exec(server.log())[1]);
  await logIn(page, user, password);
  await page.waitForSelector("a.cell");
  return page;
}

/** As the server counts, of a picture that a test has bent: a GPU that is not split, or each MIG instance. */
function countsOf(gpus) {
  const split = new Set(gpus.map((one) => one.parent));
  const units = gpus.filter((one) => !split.has(one.uuid));
  const states = {};
  for (const { state } of units) states[state] = (states[state] ?? 0) + 1;
  return {
    gpus: gpus.filter((one) => !one.parent).length,
    instances: gpus.filter((one) => one.parent).length,
    units: units.length,
    in_use: units.filter((one) => one.in_use).length,
    free: states.idle ?? 0,
    states,
  };
}

/** The live answer of the server, held still from now on; `change` may bend it first. */
export async function freeze(page, url, change = (picture) => picture) {
  const picture = change(await (await fetch(`${url}api/live`)).json());
  picture.counts = countsOf(picture.gpus);
  await page.route("**/api/live/stream", (route) => {
    // Time goes on, or the page would rightly call a still picture old. The page asks again when the stream ends.
    const now = Date.now() / 1000 + (picture.skew ?? 0);
    const data = JSON.stringify({
      columns: { nodes: {}, gpus: {}, sessions: {} },
      picture: { ...picture, now, taken_at: now },
    });
    route.fulfill({
      headers: { "content-type": "text/event-stream" },
      body: `event: clock\ndata: {"now": ${now}}\n\nevent: picture\nid: still\ndata: ${data}\n\n`,
    });
  });
  return picture;
}

/** Another view of the same page, as a click on a link opens it. */
export const go = (page, address) =>
  page.evaluate((hash) => {
    location.hash = hash;
  }, address);

/** The same question at another time: what is asked again every few seconds. */
function questionOf(path) {
  const [place, parameters] = path.split("?");
  const asked = new URLSearchParams(parameters);
  const moving = place.includes("query") ? ["time", "start", "end"] : [];
  for (const name of moving) asked.delete(name);
  return `${place}?${asked}`;
}

/**
 * A page whose numbers stand still: the picture of now, and the first answer of the server to each question. So what is on screen
 * is what `find` gives, however long a test takes and whatever the fleet does meanwhile.
 */
export async function openStill(browser, url, address, change) {
  const answers = new Map();
  const ask = async (path) => {
    const response = await fetch(url + path);
    return { status: response.status, body: await response.text() };
  };
  let picture;
  const page = await open(browser, url + address, {
    before: async (one) => {
      await one.route(`${url}api/**`, async (route) => {
        if (route.request().method() !== "GET") return route.fallback();
        const path = route.request().url().slice(url.length);
        const key = questionOf(path);
        if (!answers.has(key)) answers.set(key, { path, answer: ask(path) });
        const { status, body } = await answers.get(key).answer;
        // The page may be closed before the answer came.
        await route
          .fulfill({ status, contentType: "application/json", body })
          .catch(() => undefined);
      });
      picture = await freeze(one, url, change);
    },
  });
  /** Address and answer of each question that contains `part`, in the order they were asked. */
  const find = async (part) => {
    const found = [...answers.values()].filter((one) =>
      decodeURIComponent(one.path.replaceAll("+", " ")).includes(part),
    );
    return Promise.all(
      found.map(async ({ path, answer }) => [
        path,
        JSON.parse((await answer).body),
      ]),
    );
  };
  return { page, picture, find };
}

/** All rules of axe, or only those named. */
export async function axeFindings(page, rules) {
  await page.evaluate(AXE);
  const result = await page.evaluate(
    (only) =>
      globalThis.axe.run(document, {
        resultTypes: ["violations"],
        ...(only ? { runOnly: { type: "rule", values: only } } : {}),
      }),
    rules,
  );
  return result.violations.map(
    (one) =>
      `${one.id}: ${one.nodes
        .slice(0, 3)
        .map((node) => node.html.slice(0, 160))
        .join(" | ")}`,
  );
}

export const query = async (url, expression) => {
  const answer = await fetch(
    `${url}api/v1/query?${new URLSearchParams({ query: expression })}`,
  );
  return (await answer.json()).data.result;
};
