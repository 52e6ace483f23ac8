// A demo's answers, recorded once (record-demo.mjs), replayed to the built page without a server: every picture of a view is
// made from the same numbers at the same time. In: goldens/answers.json.gz. Out: a page that shows a view, settled.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gunzipSync } from "node:zlib";
import { blockFont } from "./block-font.mjs";

export const GOLDENS = fileURLToPath(new URL("goldens/", import.meta.url));
export const ANSWERS = join(GOLDENS, "answers.json.gz");
/** The time of every picture: the demo has run for some minutes, and rules have fired. */
export const NOW = Date.UTC(2026, 2, 4, 10, 5, 0) / 1000;
export const ORIGIN = "http://recorded.invalid/";

const BUILT = fileURLToPath(
  new URL("../../src/gpuscope/serve/page/", import.meta.url),
);
const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};
const WIDE = { width: 1280, height: 900 };
const PHONE = { width: 390, height: 844 };

/** What is shown, by the name of its golden. `live` is the recorded picture. */
export function views(live) {
  const [node] = live.nodes;
  const [gpu] = live.gpus.filter((one) => !one.parent);
  const addresses = {
    fleet: "#/fleet",
    node: `#/node/${node.name}?from=now-1h`,
    gpu: `#/gpu/${gpu.uuid}?from=now-1h`,
    alerts: "#/alerts?tab=pending",
    findings: "#/findings?since=1d",
    slurm: "#/slurm?tab=running",
    kubernetes: "#/kubernetes",
    reports: "#/reports?since=1d",
    settings: "#/settings",
  };
  const shown = (names, suffix, look) =>
    names.map((name) => [
      `${name}${suffix}`,
      { address: addresses[name], ...look },
    ]);
  return Object.fromEntries([
    ...shown(Object.keys(addresses), "", { viewport: WIDE }),
    ...shown(["fleet", "findings"], "-dark", {
      viewport: WIDE,
      colorScheme: "dark",
    }),
    ...shown(["fleet", "slurm", "findings"], "-390", { viewport: PHONE }),
  ]);
}

/** Before the first picture is drawn: charts measure text, and a picture must depend neither on its moment nor on the fonts. */
const STILL = `<style>
  * { font-family: blocks !important }
  *, ::before, ::after { animation: none !important; transition: none !important; caret-color: transparent !important }
</style></head>`;
const addFont = (bytes) => {
  const file = Uint8Array.from(atob(bytes), (one) => one.charCodeAt(0));
  document.fonts.add(new FontFace("blocks", file.buffer));
};

function fulfilFile(route, path) {
  const body = readFileSync(join(BUILT, path));
  return route.fulfill({
    body:
      path === "index.html" ? body.toString().replace("</head>", STILL) : body,
    contentType: TYPES[extname(path)],
  });
}

/** A page at the fixed time; `answer` fulfils what is below api/. */
export async function openAtFixedTime(browser, { address, ...look }, answer) {
  const context = await browser.newContext({
    locale: "en",
    timezoneId: "UTC",
    reducedMotion: "reduce",
    ...look,
  });
  const page = await context.newPage();
  page.problems = [];
  page.unanswered = 0;
  page.on("pageerror", (error) => page.problems.push(error.message));
  await page.clock.setFixedTime(NOW * 1000);
  await page.addInitScript(addFont, blockFont().toString("base64"));
  let streams = 0;
  await page.route(`${ORIGIN}**`, async (route) => {
    const path = route.request().url().slice(ORIGIN.length).split("#")[0];
    // Nothing changes after the first picture: the stream that resumes it stays silent.
    if (path === "api/live/stream" && streams++) return;
    page.unanswered += 1;
    await (path.startsWith("api/")
      ? answer(route, decodeURI(path))
      : fulfilFile(route, path || "index.html"));
    page.unanswered -= 1;
  });
  await page.goto(ORIGIN + address);
  return page;
}

/** The recorded picture as the first event of a stream. */
export const fulfilStream = (route, picture) =>
  route.fulfill({
    headers: { "content-type": "text/event-stream" },
    body: `event: clock\ndata: {"now": ${picture.now}}\n\nevent: picture\nid: recorded\ndata: ${JSON.stringify(
      {
        columns: { nodes: {}, gpus: {}, sessions: {} },
        picture,
      },
    )}\n\n`,
  });

const FRAMES = 4;
const MAX_ROUNDS = 400;

/** Until nothing is asked for, and no panel says that it loads, for some frames on end. */
export async function settle(page) {
  await page.waitForSelector("h1");
  let quiet = 0;
  for (let round = 0; quiet < 3 && round < MAX_ROUNDS; round += 1) {
    const loads = await page.evaluate(async (frames) => {
      for (let frame = 0; frame < frames; frame += 1)
        await new Promise((done) => requestAnimationFrame(done));
      return Boolean(document.querySelector(".loading"));
    }, FRAMES);
    quiet = page.unanswered || loads ? 0 : quiet + 1;
  }
  assert.equal(quiet, 3, "the view never settles");
}

export const readRecording = () =>
  JSON.parse(gunzipSync(readFileSync(ANSWERS)));

/** A page over the recorded answers. `show` opens a view of it; an answer that is not recorded fails by its address. */
export async function openRecorded(browser, recording, look) {
  const missing = new Set();
  const page = await openAtFixedTime(browser, look, (route, path) => {
    if (path === "api/live/stream")
      return fulfilStream(route, recording.answers["api/live"]);
    const answer = recording.answers[path];
    if (answer === undefined) missing.add(path);
    return answer === undefined
      ? route.fulfill({ status: 404, json: { error: "not recorded" } })
      : route.fulfill({ json: answer });
  });
  const show = async (address) => {
    await page.evaluate((hash) => {
      location.hash = hash;
      scrollTo(0, 0);
    }, address);
    await settle(page);
    assert.deepEqual(
      [...missing],
      [],
      "these answers are not recorded: npm run record-demo in web/, with the page built",
    );
    assert.deepEqual(page.problems, []);
  };
  await show(look.address);
  return { page, show };
}
