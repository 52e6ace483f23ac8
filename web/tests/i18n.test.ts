import { describe, expect, it } from "vitest";
import { FINDING_TEXTS, REPORT_TEXTS } from "../src/api-types";
import { en } from "../src/i18n/en";
import { chooseLanguage, fill, LANGUAGES, speak, t, tName } from "../src/i18n";
import { language as ja } from "../src/i18n/ja";
import { language as ko } from "../src/i18n/ko";
import { language as zh } from "../src/i18n/zh";
import { PANELS } from "../src/panels";

const OTHERS = { ko, ja, zh };
const placeholders = (text: string): string[] => [...text.matchAll(/\{(\w+)\}/g)].map((match) => match[1] ?? "").sort();

/** Names that the field writes alike in every language. */
const THE_SAME =
  /^(fleet\.gpus|gpu\.(gpu|dram|vbios|uuid)|node\.cpu|panel\.explore|explore\.(box|placeholder)|column\.(gpu|pid)|group\.pod|nav\.(slurm|kubernetes)|kubernetes\.(gpus|pods)|place\.(gpu|pod)|settings\.as|legend\.(gpu|sm))$/;

const SOURCES = import.meta.glob<string>(["../src/**/*.{ts,tsx}", "!../src/i18n/**"], {
  query: "?raw",
  import: "default",
  eager: true,
});

describe.each(Object.entries(OTHERS))("%s", (_, language) => {
  it("has every key and no other", () => {
    expect(Object.keys(language.words).sort()).toEqual(Object.keys(en).sort());
  });
  it("fills the same names in", () => {
    for (const [key, text] of Object.entries(en)) {
      expect([key, placeholders(language.words[key as keyof typeof en])]).toEqual([key, placeholders(text)]);
    }
  });
  it("leaves no text empty or in English by mistake", () => {
    const same = Object.entries(en)
      .filter(([key, text]) => language.words[key as keyof typeof en] === text)
      .map(([key]) => key);
    expect(same.filter((key) => !THE_SAME.test(key))).toEqual([]);
    expect(Object.values(language.words).filter((text) => !text.trim())).toEqual([]);
  });
  it.each([
    ["finding", FINDING_TEXTS, language.findings],
    ["sentence of reports", REPORT_TEXTS, language.reports],
  ])("says every %s, with the same names in it", (_, english, translated: Record<string, string>) => {
    expect(Object.keys(translated).sort()).toEqual(Object.keys(english).sort());
    for (const [key, text] of Object.entries(english)) {
      const other = translated[key] ?? "";
      expect([key, placeholders(other)]).toEqual([key, placeholders(text)]);
      expect(other).not.toBe(text);
    }
  });
  it("names every panel and no other", () => {
    expect(Object.keys(language.panels).sort()).toEqual(PANELS.map((panel) => panel.id).sort());
  });
});

it("has a key for every word of a legend", () => {
  const legends = PANELS.flatMap((panel) => panel.queries.map((query) => query.legend));
  // Names in capitals (GPU, XID) are the same everywhere; what stands in braces comes from the series.
  const worded = legends.filter((legend) => /[a-z]/.test(legend.replace(/\{\{\w+\}\}/g, "")));
  expect(worded).toContain("encoder");
  expect(worded.filter((legend) => !Object.hasOwn(en, `legend.${legend}`))).toEqual([]);
});

it("has a name for every kind of finding", () => {
  const kinds = Object.keys(FINDING_TEXTS).map((key) => key.replace(/^past\./, "").split(".")[0] ?? "");
  expect([...new Set(kinds)].filter((kind) => !Object.hasOwn(en, `kind.${kind}`))).toEqual([]);
});

it("uses every key", () => {
  const code = Object.values(SOURCES).join("\n");
  expect(code.length).toBeGreaterThan(10_000);
  const looksUp = [...code.matchAll(/t\(`([\w.]+)\.\$\{/g), ...code.matchAll(/tName\("(\w+)"/g)].map(
    (match) => `${match[1]}.`,
  );
  const unused = Object.keys(en).filter(
    (key) => !code.includes(`"${key.replace(/\.one$/, "")}"`) && !looksUp.some((prefix) => key.startsWith(prefix)),
  );
  expect(unused).toEqual([]);
});

it("chooses what was chosen before, then what the browser prefers, then English", () => {
  expect(chooseLanguage("ja", ["ko-KR"])).toBe("ja");
  expect(chooseLanguage(null, ["fr", "ko-KR", "en"])).toBe("ko");
  expect(chooseLanguage("xx", ["fr"])).toBe("en");
  expect(Object.keys(LANGUAGES)).toEqual(["en", "ko", "ja", "zh"]);
});

it("fills names in as text and keeps those it does not know", () => {
  expect(fill("{a} and {b}", { a: "$& <img>" })).toBe("$& <img> and {b}");
});

it("speaks another language and shows a machine's word where there is no other", async () => {
  globalThis.document = { documentElement: {} } as Document;
  await speak("ko");
  expect(t("nav.sessions")).toBe("세션");
  expect(tName("why", "XID 79")).toBe("XID 79");
  await speak("en");
  expect(tName("why", "sw_power_cap")).toBe("power limit");
});
