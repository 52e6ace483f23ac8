// Pictures of the main views over recorded answers, compared with tests/page/goldens/*.png. GOLDEN_UPDATE=1 writes them anew.
// What differs is left in a folder of the system, as its golden and as it is now.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./browser.mjs";
import {
  decodePng,
  encodePng,
  findDifferences,
  scaleDown,
} from "./picture.mjs";
import {
  GOLDENS,
  openRecorded,
  readRecording,
  settle,
  views,
} from "./recorded-demo.mjs";

const recording = readRecording();
const VIEWS = views(recording.answers["api/live"]);
/** Views of one window size and colour scheme share a page, as a user who follows the links does. */
const LOOKS = ["", "-dark", "-390"];
const lookOf = (name) => LOOKS.findLast((look) => name.endsWith(look));
const isUpdate = Boolean(process.env.GOLDEN_UPDATE);
const opened = new Map();
let browser;
let scaler;

before(async () => {
  browser = await launch();
  scaler = await browser.newPage();
});
after(() => browser?.close());

async function show(name) {
  const look = lookOf(name);
  if (!opened.has(look))
    opened.set(look, await openRecorded(browser, recording, VIEWS[name]));
  const { page, show: showAddress } = opened.get(look);
  await showAddress(VIEWS[name].address);
  return page;
}

const shoot = async (page) => scaleDown(scaler, await page.screenshot());
const goldenOf = (name) =>
  decodePng(readFileSync(join(GOLDENS, `${name}.png`)));

for (const name of Object.keys(VIEWS))
  test(`${name} looks like its golden`, async () => {
    const picture = await shoot(await show(name));
    if (isUpdate) {
      writeFileSync(join(GOLDENS, `${name}.png`), encodePng(picture));
      return;
    }
    const found = findDifferences(goldenOf(name), picture);
    if (!found.length) return;
    const now = join(tmpdir(), `gpuscope-golden-${name}.png`);
    writeFileSync(now, encodePng(picture));
    const places = found.slice(0, 5).map(({ x, y }) => `${x},${y}`);
    assert.fail(
      `${found.length} blocks of 16 px differ, the first at ${places.join(" ")}; it looks like ${now}`,
    );
  });

/** How many blocks of a view differ from its golden when one thing is changed by CSS. */
async function countDifferences(name, css) {
  const page = await show(name);
  const style = await page.addStyleTag({ content: css });
  await settle(page);
  const found = findDifferences(goldenOf(name), await shoot(page));
  await style.evaluate((element) => element.remove());
  return found.length;
}

const CELL = ".node:last-of-type .cells > :nth-child(2)";
const CHANGES = [
  ["a missing panel", "gpu", "[data-panel=gpu_power] { visibility: hidden }"],
  ["a missing line", "gpu", "[data-panel=gpu_power] canvas { opacity: 0 }"],
  ["a missing column", "findings", "td:nth-child(3) { visibility: hidden }"],
  ["a missing finding", "fleet", ".finding { display: none }"],
  ["a clipped cell", "fleet", `${CELL} { clip-path: inset(0 40% 0 0) }`],
  ["a recoloured cell", "fleet", `${CELL} { background: #fbb !important }`],
  ["another accent colour", "fleet", ":root { --accent: #b0206a !important }"],
  ["a narrower panel", "gpu", "[data-panel=gpu_power] { scale: 0.9 1 }"],
];

test(
  "what a user would miss differs from the golden",
  { skip: isUpdate },
  async () => {
    const unseen = [];
    for (const [what, name, css] of CHANGES)
      if (!(await countDifferences(name, css))) unseen.push(what);
    assert.deepEqual(unseen, []);
  },
);

test(
  "smoothing and a shift of some pixels do not",
  { skip: isUpdate },
  async () => {
    for (const css of [
      "main { translate: 2px 1px }",
      "main { translate: 0.4px 0.6px }",
      "body { font-weight: 500 }",
    ])
      assert.equal(await countDifferences("fleet", css), 0, css);
  },
);
