// What the views say of alerts, findings, reports and Slurm's queue, and how a language writes a duration.
import { afterEach, describe, expect, it } from "vitest";
import { splitMeaning, type AlertRow } from "../src/alerts";
import type { InstantSample } from "../src/api";
import { costOf, sumCosts } from "../src/finding-text";
import { formatDuration, formatLength, formatRange, setLocale } from "../src/format";
import { spoken } from "../src/i18n";
import { language as ko } from "../src/i18n/ko";
import type { Finding, LivePicture } from "../src/live";
import { sentenceText } from "../src/report-text";
import { sortSlurm } from "../src/slurm";
import { unitOf } from "../src/units";

const english = spoken.get();
afterEach(() => {
  setLocale("en");
  spoken.set(english);
});

describe("durations", () => {
  it.each([
    ["en", "6 h 8 min", "30d"],
    ["ko", "6시간 8분", "30일"],
    ["ja", "6 時間 8 分", "30 日"],
    ["zh-CN", "6小时 8分钟", "30天"],
    ["de", "6 h 8 min", "30d"],
  ])("of %s", (locale, duration, length) => {
    setLocale(locale);
    expect([formatDuration(22_110), formatLength("30d")]).toEqual([duration, length]);
  });
  it("name both days of a range that is not of today", () => {
    const day = 86_400;
    const now = new Date(2026, 10, 17, 12).getTime() / 1000;
    expect(formatRange(now - day, now, now, "en")).toBe("Nov 16, 12:00 – Nov 17, 12:00");
    expect(formatRange(now - 3600, now, now, "en")).toBe("11:00 – 12:00");
  });
});

describe("alerts of one rule", () => {
  const alert = (description: string): AlertRow => ({ annotations: { description } }) as unknown as AlertRow;
  it("say once what they share, and each its own number", () => {
    const found = splitMeaning([alert("A GPU is idle. Idle for 6h."), alert("A GPU is idle. Idle for 16m.")]);
    expect(found).toEqual({ meaning: "A GPU is idle.", details: ["Idle for 6h.", "Idle for 16m."] });
  });
  it("keep the whole text of a single one, and of those that share nothing", () => {
    expect(splitMeaning([alert("Nodes are down. Nodes: 1.")])).toEqual({
      meaning: "Nodes are down. Nodes: 1.",
      details: [""],
    });
    expect(splitMeaning([alert("a"), alert("b")])).toEqual({ meaning: "", details: ["a", "b"] });
  });
});

describe("the cost of findings", () => {
  const HOUR = 3600;
  const finding = (id: string, counted: number | null, wasted: number | null = null): Finding =>
    ({
      id,
      cost_gpu_hours: counted,
      wasted_gpus: wasted,
      cost_at: counted === null ? null : HOUR,
    }) as unknown as Finding;
  it("is counted by the server and grows with the GPUs that are wasted; else it is absent", () => {
    expect(costOf(finding("a", 7, 2), 6 * HOUR)).toBe(17);
    expect(costOf(finding("a", 7, 2), 0)).toBe(7);
    expect(costOf(finding("a", 3.5), 6 * HOUR)).toBe(3.5);
    expect(costOf(finding("a", null), 6 * HOUR)).toBeUndefined();
  });
  it("adds up, because the server counts each hour of a GPU once", () => {
    expect(sumCosts([finding("a", 1, 1), finding("b", 0.5), finding("c", null)], 2 * HOUR)).toBe(2.5);
    expect(sumCosts([finding("a", null)], HOUR)).toBeUndefined();
  });
});

describe("sentences of reports", () => {
  const late = { key: "missing.late_at", args: { hours: 17.94, at: 1_794_852_600 } };
  const text = "the history begins 17.9 h after the start of the range, at 2026-11-16T18:10:00Z";
  it("show a reader's time in English", () => {
    expect(sentenceText(text, late)).toMatch(/^The history begins 17.9 h after .*, at [^Z]*\d\d:\d0:00\.$/);
  });
  it("are said in another language, with its numbers", () => {
    spoken.set({ code: "ko", ...ko });
    expect(sentenceText(text, late)).toMatch(/^기록은 기간 시작보다 17.9시간 늦은 .*에 시작합니다\.$/);
    const throttled = { key: "receipt.throttled", args: { reason: "sw_power_cap", percent: 12 } };
    expect(sentenceText("", throttled)).toBe("시간의 12 % 동안 GPU가 느려졌습니다(전력 한도).");
  });
  it("stay English where the server is newer than the page", () => {
    spoken.set({ code: "ko", ...ko });
    expect(sentenceText("something new", { key: "missing.new", args: {} })).toBe("Something new.");
  });
});

describe("Slurm's queue", () => {
  const sample = (name: string, value: number, metric: Record<string, string>): InstantSample =>
    ({ metric: { __name__: `gpuscope_slurm_${name}`, ...metric }, value: [0, String(value)] }) as InstantSample;
  it("lists jobs that wait; what Slurm does not tell is absent", () => {
    const picture = { gpus: [], sessions: [] } as unknown as LivePicture;
    const job = { slurm_job: "7", name: "train", user: "emre", partition: "gpu", reason: "Resources" };
    const found = sortSlurm(
      [sample("up", 1, {}), sample("pending_job_info", 1, job), sample("pending_job_gpus", 16, { slurm_job: "7" })],
      picture,
    );
    expect(found?.pending).toEqual([
      { ...job, slurm_job: undefined, job: "7", account: "", gpus: 16, tasks: undefined, eligibleAt: undefined },
    ]);
  });
});

describe("units of a query", () => {
  it("survive a join with an info series, and no other product", () => {
    const join = "sum by (node) (gpuscope_gpu_power_watts * on (uuid) group_left (node) gpuscope_gpu_info)";
    expect(unitOf(join)).toBe("watts");
    expect(unitOf("gpuscope_gpu_power_watts * gpuscope_gpu_utilization_ratio")).toBe("count");
    expect(unitOf("gpuscope_gpu_power_watts * 2")).toBe("count");
  });
});
