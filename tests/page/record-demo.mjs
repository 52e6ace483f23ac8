// Records the answers that the views of the visual goldens need: `npm run record-demo` in web/, with the page built and
// `python` of the environment that has gpuscope installed (GPUSCOPE_PYTHON). The fleet has a fixed seed and its clock starts at
// a fixed time, so a new recording differs only where the program does.
import { spawn } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { dataFolder, freePort, launch } from "./browser.mjs";
import {
  ANSWERS,
  fulfilStream,
  GOLDENS,
  NOW,
  openAtFixedTime,
  ORIGIN,
  settle,
  views,
} from "./recorded-demo.mjs";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const PYTHON = process.env.GPUSCOPE_PYTHON ?? `${ROOT}.venv/bin/python`;
/** Rules are evaluated each minute, and several wait some minutes before they fire. */
const RUNS_BEFORE_SECONDS = 150;
const FLEET = "--seed 7 --demo-nodes 3 --demo-gpus 8 --scenario one-works";

async function getJson(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer.json();
}

async function waitUntilNow(url, child) {
  for (;;) {
    if (child.exitCode !== null) throw new Error("gpuscope ended");
    const live = await getJson(`${url}api/live`).catch(() => undefined);
    if (live && live.now >= NOW) return live;
    await new Promise((done) => setTimeout(done, 200));
  }
}

const data = dataFolder();
const address = `127.0.0.1:${await freePort()}`;
const start = String(NOW - RUNS_BEFORE_SECONDS);
const child = spawn(
  PYTHON,
  [
    ...["-m", "tests.page.demo_at_fixed_time", start],
    ...["up", "--demo", "--data", data.folder, "--listen", address],
    ...FLEET.split(" "),
  ],
  { cwd: ROOT, stdio: ["ignore", "ignore", "inherit"] },
);
const ended = new Promise((done) => child.once("exit", done));
const browser = await launch();
try {
  const url = `http://${address}/`;
  const live = { ...(await waitUntilNow(url, child)), now: NOW, taken_at: NOW };
  const answers = { "api/live": live };
  for (const [name, view] of Object.entries(views(live))) {
    const page = await openAtFixedTime(browser, view, async (route, path) => {
      if (path === "api/live/stream") return fulfilStream(route, live);
      answers[path] ??= await getJson(
        url + route.request().url().slice(ORIGIN.length),
      );
      return route.fulfill({ json: answers[path] });
    });
    await settle(page);
    await page.context().close();
    console.log(`${name}: ${Object.keys(answers).length} answers`);
  }
  mkdirSync(GOLDENS, { recursive: true });
  const sorted = Object.fromEntries(Object.entries(answers).sort());
  const packed = gzipSync(JSON.stringify({ answers: sorted }), { level: 9 });
  writeFileSync(ANSWERS, packed);
  console.log(`${ANSWERS}: ${packed.length} bytes`);
} finally {
  await browser.close();
  child.kill();
  await ended;
  data.remove();
}
