// The document that the server's tests make of `/api/live`: the page reads it as its types say.
import { expect, it } from "vitest";
import golden from "../../tests/golden/api/live.json";
import type { LivePicture } from "../src/api-types";
import { nextText, ownerLabel, whyText } from "../src/finding-text";
import { arrange, leaves, levelOf } from "../src/fleet";
import { speak } from "../src/i18n";

// TypeScript reads a literal in JSON as a string; the Python test checks the values of the literals.
const picture = golden as unknown as LivePicture;

it("is arranged and counted", () => {
  const nodes = arrange(picture);
  expect(nodes.map((node) => [node.name, node.cells.length, Boolean(node.gone)])).toEqual([
    ["n1", 4, false],
    ["n2", 1, true],
  ]);
  // The cells that the page draws are the units that the server counts.
  const units = leaves(nodes.flatMap((node) => node.cells)).map((cell) => cell.gpu);
  const { counts } = picture;
  expect(counts).toMatchObject({ gpus: 5, instances: 1, units: units.length });
  expect(counts.in_use).toBe(units.filter((unit) => unit.in_use).length);
  for (const [state, count] of Object.entries(counts.states))
    expect(units.filter((unit) => unit.state === state).length).toBe(count);
});

it("has zeros and absent numbers apart", () => {
  const [first, second] = picture.gpus;
  expect(first?.tensor).toBe(0);
  expect(second).not.toHaveProperty("tensor");
  expect(second && levelOf(second, "memory")).toBeUndefined();
});

it("holds a MIG instance in every view", () => {
  const instance = picture.gpus.find((gpu) => gpu.parent);
  const session = picture.sessions.find((one) => one.uuid === instance?.uuid);
  expect([instance?.state, session?.state]).toEqual(["held", "idle"]);
});

it("says each finding as the server does, and in other languages", async () => {
  for (const finding of picture.findings) {
    expect(whyText(finding)).toBe(finding.why);
    expect(nextText(finding)).toBe(finding.next);
  }
  const held = picture.findings.find((one) => one.kind === "held_idle");
  expect(held && ownerLabel(held.owner)).toBe("job 17 (alice)");
  globalThis.document = { documentElement: {} } as Document;
  for (const code of ["ko", "ja", "zh"] as const) {
    await speak(code);
    for (const finding of picture.findings) {
      expect(whyText(finding)).not.toBe(finding.why);
      expect(nextText(finding)).not.toBe(finding.next);
      expect(whyText(finding) + nextText(finding)).not.toMatch(/\{\w+\}/);
    }
  }
  await speak("en");
});

it("falls back to the server's English for a kind this page does not know", () => {
  const [finding] = picture.findings;
  if (!finding) throw new Error("no finding");
  const newer = { ...finding, why_key: "of_tomorrow", next_key: "of_tomorrow" };
  expect([whyText(newer), nextText(newer)]).toEqual([finding.why, finding.next]);
});
