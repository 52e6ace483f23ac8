// The server that test_page.py started, its live answer at the beginning, and one Chromium for all tests of a file.
import { after, before } from "node:test";
import { launch } from "./browser.mjs";

export const URL_ = process.env.GPUSCOPE_URL;
// Set before the first test runs; who imports them sees the new value.
export let browser;
export let live;

before(async () => {
  browser = await launch();
  live = await (await fetch(`${URL_}api/live`)).json();
});
after(() => browser?.close());

/** GPUs without MIG instances. */
export const boards = () => live.gpus.filter((gpu) => !gpu.parent);
