// Pictures for the README and the docs: `npm run screenshots`, over a running `gpuscope up --demo` (GPUSCOPE_URL, or the
// default address); `npm run screenshots alerts slurm` makes only those. The large fleets are the stand-in's, since filling
// the history of 1,000 GPUs takes minutes.
import { mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { launch } from "./chromium.mjs";
import { serveStandIn } from "./stand-in.mjs";

const URL_ = process.env.GPUSCOPE_URL ?? "http://127.0.0.1:9470/";
const FOLDER = fileURLToPath(new URL("../../docs/img/", import.meta.url));
const live = await (await fetch(`${URL_}api/live`)).json();
const [node] = live.nodes;
const busiest = live.gpus.filter((gpu) => !gpu.parent).sort((left, right) => (right.busy ?? 0) - (left.busy ?? 0))[0];

const SHOTS = [
  { name: "fleet", address: "#/fleet" },
  { name: "fleet-dark", address: "#/fleet", dark: true },
  { name: "node", address: `#/node/${node.name}?from=now-6h`, height: 1200 },
  { name: "gpu", address: `#/gpu/${busiest.uuid}?from=now-6h`, height: 1200, dark: true },
  { name: "sessions", address: "#/sessions" },
  {
    name: "explore",
    address:
      "#/explore?q=sum+by+%28node%29+%28gpuscope_gpu_power_watts+*+on+%28uuid%29+group_left+%28node%29+gpuscope_gpu_info%29&from=now-3h",
  },
  { name: "findings", address: "#/findings?since=1d" },
  { name: "alerts", address: "#/alerts?tab=pending" },
  { name: "slurm", address: "#/slurm?tab=running" },
  { name: "kubernetes", address: "#/kubernetes" },
  { name: "reports", address: "#/reports?since=1d" },
  { name: "settings", address: "#/settings?tab=history" },
  { name: "fleet-over-time", address: "#/fleet?v=time&from=now-6h" },
  { name: "changes", address: "#/changes?from=now-1h" },
  { name: "phone", address: "#/fleet", width: 390, height: 844 },
  { name: "fleet-korean", address: "#/fleet", locale: "ko" },
];

mkdirSync(FOLDER, { recursive: true });
const browser = await launch();

async function shoot(url, { name, address, width = 1440, height = 900, dark = false, locale = "en" }) {
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: dark ? "dark" : "light",
    locale,
  });
  const page = await context.newPage();
  await page.goto(url + address);
  await page.waitForSelector("h1");
  await page.waitForFunction(() => !document.querySelector(".loading"));
  await page.waitForTimeout(2500);
  await page.screenshot({ path: `${FOLDER}${name}.png` });
  await context.close();
  console.log(`docs/img/${name}.png`);
}

const chosen = process.argv.slice(2);
const isWanted = (name) => !chosen.length || chosen.includes(name);
for (const shot of SHOTS) if (isWanted(shot.name)) await shoot(URL_, shot);
for (const [name, nodes] of [
  ["fleet-1000", 125],
  ["fleet-8000", 1000],
]) {
  if (!isWanted(name)) continue;
  const fleet = await serveStandIn({ nodes, gpusEach: 8 });
  await shoot(fleet.url, { name, address: "#/fleet" });
  fleet.close();
}
await browser.close();
