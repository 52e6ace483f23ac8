// The page's clock: compared with the server's clock of an answer, not with the time of the numbers in it.
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import golden from "../../tests/golden/api/live_stream.json";
import type { StreamPicture } from "../src/api-types";
import { askOnce, clockSkew, live, serverNow, takeEvent } from "../src/live";

const SERVER_NOW = 1_763_000_000;
const first = golden.first as unknown as StreamPicture;
const event = (name: string, data: object) => ({ name, id: "", data: JSON.stringify(data) });
const pictureOf = (at: number) =>
  event("picture", { ...first, picture: { ...first.picture, now: at, taken_at: at - 1 } });

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it("does not call a browser's clock wrong for a picture that was made earlier", () => {
  vi.setSystemTime(SERVER_NOW * 1000);
  takeEvent(event("clock", { now: SERVER_NOW }));
  takeEvent(pictureOf(SERVER_NOW - 780));
  expect(Math.abs(clockSkew())).toBeLessThan(0.1);
  expect(serverNow() - (live.get().picture?.taken_at ?? 0)).toBeCloseTo(781, 0);
});

it("learns the difference of the clocks from the server's", () => {
  vi.setSystemTime((SERVER_NOW + 3600) * 1000);
  takeEvent(event("clock", { now: SERVER_NOW }));
  takeEvent(pictureOf(SERVER_NOW - 5));
  expect(clockSkew()).toBeCloseTo(-3600, 0);
  expect(serverNow()).toBeCloseTo(SERVER_NOW, 0);
});

it.each([
  [{ date: new Date(SERVER_NOW * 1000).toUTCString() }, 0],
  [{}, -30], // a proxy removed the header: the picture's time is the best there is
])("without a stream takes the clock from the answer %j", async (headers, skew) => {
  vi.setSystemTime(SERVER_NOW * 1000 + 500);
  takeEvent(event("clock", { now: SERVER_NOW + 3600 })); // what was known before does not count after a jump
  const picture = { ...first.picture, now: SERVER_NOW - 30 + 0.5, taken_at: SERVER_NOW - 31 };
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(JSON.stringify(picture), { headers })));
  await askOnce(new AbortController().signal);
  expect(clockSkew()).toBeCloseTo(skew, 1);
  expect(serverNow() - (live.get().picture?.taken_at ?? 0)).toBeCloseTo(31.5 + skew, 0);
});
