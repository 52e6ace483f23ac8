// The page's clock: compared with the server's clock of an answer, not with the time of the numbers in it.
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import golden from "../../tests/golden/api/live_stream.json";
import type { StreamPicture } from "../src/api-types";
import { clockSkew, live, serverNow, takeEvent } from "../src/live";

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
