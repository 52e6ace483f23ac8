// Which form of a Korean particle is right depends on the sound before it: after a filled-in name nobody knows that.
import { expect, it } from "vitest";
import { findings, steps } from "../src/i18n/findings.ko";

it("needs no particle after a name or a number", () => {
  const texts = [...Object.entries(findings), ...Object.entries(steps)];
  const wrong = texts.filter(([, text]) => /\}(은|는|이|가|을|를|과|와|으로|로)(?![가-힣(])/.test(text));
  expect(wrong.map(([key]) => key)).toEqual([]);
});
