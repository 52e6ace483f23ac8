import { describe, expect, it } from "vitest";
import { columnOf, isolatedPlaces, newest, runsOf, summarise, timesOf, valueRange } from "../src/charts/align";
import { eventsOf, levelRows, spanRows, stateRows } from "../src/charts/rows";
import {
  formatDuration,
  formatHours,
  formatIndices,
  formatValue,
  naturalOrder,
  shortModel,
  toSentence,
} from "../src/format";
import { nodeCommand } from "../src/parts/add-node";
import { fillExpression, fillLegend, panelById, PANELS, toRegex } from "../src/panels";
import { commonLabels, describeMetric, placeAt, rank } from "../src/promql";
import { formatRoute, parseRoute } from "../src/router";
import { sortByValue } from "../src/sorting";
import { alignSpan, chooseStep, parseDuration, pan, readRange, relativeLength, resolveRange, zoom } from "../src/time";
import { toInterval, windowsFor } from "../src/timeline";

describe("sentences of the server", () => {
  it.each([
    ["the history begins 3.0 h after the start of the range", "The history begins 3.0 h after the start of the range."],
    ["2.0 GPU-hours are missing", "2.0 GPU-hours are missing."],
    ["node-1: 3.0 GPU-hours lost", "node-1: 3.0 GPU-hours lost."],
    ["gpu: 3.0 GPU-hours lost", "gpu: 3.0 GPU-hours lost."],
    ["held_idle is not known for 1.0 h", "held_idle is not known for 1.0 h."],
    ["Ask again.", "Ask again."],
  ])("%s", (clause, sentence) => expect(toSentence(clause)).toBe(sentence));
});

describe("rows of several nodes", () => {
  it("stand by node, then by GPU", () => {
    const found = panelById("node_levels");
    if (!found) throw new Error("no panel node_levels");
    const panel = {
      ...found,
      nameOf: (metric: Readonly<Record<string, string>>) => `${metric["node"]} GPU ${metric["gpu"]}`,
    };
    const series = (node: string, gpu: string) => ({ metric: { node, gpu }, values: [] });
    const rows = levelRows(
      panel,
      [[series("b", "1"), series("a", "10"), series("a", "2")]],
      { start: 0, end: 60 },
      60,
      2,
    );
    expect(rows.map((row) => row.name)).toEqual(["a GPU 2", "a GPU 10", "b GPU 1"]);
  });
});

it("hours that are few are not shown as none", () => {
  expect([0, 0.01, 0.05, 12.34, 100.4, undefined].map(formatHours)).toEqual(["0.0", "<0.1", "0.1", "12.3", "100", "–"]);
});

describe("the order of tables", () => {
  const sorted = (values: (string | number | undefined)[], isDescending: boolean): unknown[] =>
    sortByValue(values, (one) => one, isDescending);
  it("puts absent values last both ways, and 0 is not absent", () => {
    expect(sorted([undefined, 2, 0, 10], false)).toEqual([0, 2, 10, undefined]);
    expect(sorted([undefined, 2, 0, 10], true)).toEqual([10, 2, 0, undefined]);
  });
  it("counts names as people do", () => {
    expect(sorted(["node10", "node2"], false)).toEqual(["node2", "node10"]);
  });
});

describe("format", () => {
  it("never shows absent as 0, nor 0 as absent", () => {
    expect(formatValue(undefined, "ratio")).toBe("–");
    expect(formatValue(Number.NaN, "watts")).toBe("–");
    expect(formatValue(0, "ratio")).toBe("0 %");
    expect(formatValue(0, "bytes")).toBe("0 B");
  });
  it.each([
    [0.974, "ratio", "97 %"],
    [0.004, "ratio", "0.4 %"],
    [85520809984, "bytes", "79.6 GiB"],
    [1024, "bytes", "1 KiB"],
    [677.4, "watts", "677 W"],
    [3740, "watts", "3.74 kW"],
    [69.4, "celsius", "69 °C"],
    [1.95e9, "hertz", "1.95 GHz"],
    [0, "bytes_per_second", "0 B/s"],
    [72.8e9, "bytes_per_second", "72.8 GB/s"],
    [1.99, "count", "1.99"],
  ] as const)("shows %d %s as %s", (value, unit, text) => expect(formatValue(value, unit)).toBe(text));
  it.each([
    [8, "8 s"],
    [59.6, "1 min"],
    [720, "12 min"],
    [3600, "1 h"],
    [29_280, "8 h 8 min"],
    [273_600, "3 d 4 h"],
    [-3, "0 s"],
  ])("says %d seconds as %s", (seconds, text) => expect(formatDuration(seconds)).toBe(text));
  it("joins neighbouring indices", () => {
    expect(formatIndices(["0", "1", "2", "5"])).toBe("0–2, 5");
    expect(formatIndices(["1", "2"])).toBe("1, 2");
    expect(formatIndices(["6_2_0", "3"])).toBe("3, 6_2_0");
  });
  it("orders names as people do", () => expect(["gpu-10", "gpu-9"].sort(naturalOrder)).toEqual(["gpu-9", "gpu-10"]));
  it("leaves the maker out", () => expect(shortModel("NVIDIA GeForce RTX 4090")).toBe("RTX 4090"));
});

describe("router", () => {
  it.each([
    "#/fleet",
    "#/gpu/GPU-1?from=now-6h",
    "#/node/a%2Fb%3Fc%23d?from=1&to=2",
    "#/explore?q=up%7Ba%3D%22b%22%7D",
  ])("reads and writes %s", (address) => expect(formatRoute(parseRoute(address))).toBe(address));
  it("shows the fleet for an empty or broken address", () => {
    expect(parseRoute("").view).toBe("fleet");
    expect(parseRoute("#/node/%E0%A4%A").name).toBe("%E0%A4%A");
  });
});

describe("time", () => {
  it("reads ranges, and takes the default for nonsense", () => {
    expect(resolveRange({ from: "now-6h", to: "now" }, 100_000)).toEqual({ start: 78_400, end: 100_000 });
    expect(readRange({ from: "100", to: "50" })).toEqual({ from: "now-1h", to: "now" });
    expect(readRange({ from: "<img>", to: "now" })).toEqual({ from: "now-1h", to: "now" });
    expect(parseDuration("1.5h")).toBe(5400);
    expect(relativeLength({ from: "now-6h", to: "now" })).toBe("6h");
    expect(relativeLength({ from: "1", to: "2" })).toBeUndefined();
  });
  it("asks for no more points than pixels, however long the range", () => {
    for (const seconds of [60, 3600, 86_400, 31_536_000, 315_360_000]) {
      expect(seconds / chooseStep(seconds, 900)).toBeLessThanOrEqual(450);
    }
  });
  it("moves and zooms without passing now", () => {
    expect(pan({ start: 0, end: 100 }, 0.5, 120)).toEqual({ start: 20, end: 120 });
    expect(zoom({ start: 0, end: 100 }, 2, 120)).toEqual({ start: -80, end: 120 });
    expect(
      zoom({ start: 0, end: 12 }, 0.5, 120).end - zoom({ start: 0, end: 12 }, 0.5, 120).start,
    ).toBeGreaterThanOrEqual(9.9);
    expect(alignSpan({ start: 11, end: 29 }, 10)).toEqual({ start: 10, end: 30 });
  });
  it("takes the coarsest spacing of samples, without the edge", () => {
    expect(toInterval([5, 60, 5, 60, 60, 290])).toBe(60);
    expect(toInterval([])).toBe(15);
    expect(windowsFor(5, 5)).toEqual({ window: "8s", rate: "16s" });
    expect(windowsFor(300, 5)).toEqual({ window: "300s", rate: "305s" });
  });
});

describe("charts", () => {
  const span = { start: 0, end: 50 };
  const column = columnOf(
    {
      metric: {},
      values: [
        [0, "1"],
        [10, "2"],
        [40, "4"],
        [50, "NaN"],
      ],
    },
    span,
    10,
    6,
  );
  it("draws a gap as a gap and a lonely sample as a point", () => {
    expect(timesOf(span, 10)).toEqual([0, 10, 20, 30, 40, 50]);
    expect(column).toEqual([1, 2, null, null, 4, null]);
    expect(isolatedPlaces(column)).toEqual([4]);
    expect(summarise(column)).toEqual({ last: 4, min: 1, max: 4 });
    expect(newest([1, 2, null, null, null])).toBeUndefined();
    expect(newest([1, 0, null])).toBe(0);
    expect(summarise([null])).toEqual({ last: undefined, min: undefined, max: undefined });
  });
  it("ends a run at a gap", () =>
    expect(runsOf([1, 1, null, 1, 0])).toEqual([
      { from: 0, to: 1, value: 1 },
      { from: 3, to: 3, value: 1 },
      { from: 4, to: 4, value: 0 },
    ]));
  it("tells each XID once, at its own time", () => {
    const panel = panelById("gpu_events");
    if (!panel) throw new Error("no events panel");
    const xid = {
      metric: { xid: "79" },
      values: [
        [10, "7.5"],
        [20, "7.5"],
        [30, "28"],
        [40, "999"],
      ] as [number, string][],
    };
    expect(eventsOf(panel, [[xid], []], span)).toEqual([
      { at: 7.5, name: "XID 79" },
      { at: 28, name: "XID 79" },
    ]);
    expect(stateRows(panel, [[xid], []], span, 10, 6).map((row) => row.name)).toEqual(["XID 79"]);
  });
  it("leaves out reasons that never held, and says which are not normal", () => {
    const panel = panelById("gpu_throttle");
    if (!panel) throw new Error("no throttle panel");
    const series = (reason: string, value: string) => ({
      metric: { reason },
      values: [[0, value]] as [number, string][],
    });
    const rows = stateRows(
      panel,
      [[series("gpu_idle", "1"), series("hw_slowdown", "1"), series("sync_boost", "0")]],
      span,
      10,
      6,
    );
    expect(rows.map((row) => [row.name, row.look(1)?.colour])).toEqual([
      ["idle clocks", "neutral"],
      ["hardware protection", "severe"],
    ]);
  });
  it("keeps processes that ended", () => {
    const panel = panelById("gpu_processes");
    if (!panel) throw new Error("no processes panel");
    const held = {
      metric: { pid: "1", command: "python3", user: "lei" },
      values: [
        [0, "5"],
        [10, "5"],
      ] as [number, string][],
    };
    const [row] = spanRows(panel, [[held], []], span, 10, 6);
    expect(row?.name).toBe("python3 lei 1");
    expect(row?.column).toEqual([0, 0, null, null, null, null]);
  });
});

describe("panels", () => {
  it("have different names and only variables that are filled", () => {
    expect(new Set(PANELS.map((panel) => panel.id)).size).toBe(PANELS.length);
    for (const panel of PANELS) {
      for (const query of panel.queries) {
        const names = [...query.expr.matchAll(/\$(\w+)/g)].map((match) => match[1]);
        expect(names.every((name) => ["uuid", "uuids", "instance", "window", "rate"].includes(name ?? ""))).toBe(true);
      }
    }
  });
  it("keep hostile names inside their string", () => {
    expect(fillExpression('up{a="$uuid"}[$window]', { uuid: '"} or vector(1) #\\', window: "5s" })).toBe(
      'up{a="\\"} or vector(1) #\\\\"}[5s]',
    );
    expect(toRegex(["a.b", "c|d"])).toBe("a\\.b|c\\|d");
    expect(fillLegend("GPU {{gpu}} {{none}}", { gpu: "{{x}}" })).toBe("GPU {{x}} ");
  });
});

describe("promql", () => {
  it.each([
    ["rate(gpus", { kind: "name", word: "gpus" }],
    ["up{", { kind: "label", word: "", metric: "up" }],
    ['up{a="b", in', { kind: "label", word: "in", metric: "up" }],
    ['up{instance="gp', { kind: "value", word: "gp", label: "instance", metric: "up" }],
    ['up{instance=~"a\\"b', { kind: "value", word: 'a\\"b', label: "instance" }],
    ['up{a="}"} + no', { kind: "name", word: "no" }],
    ["sum by (no", { kind: "label", word: "no", metric: "" }],
    ["rate(x[5", { kind: "none" }],
  ] as const)("knows what may come after %s", (text, place) => expect(placeAt(text, text.length)).toMatchObject(place));
  it("offers what begins with the word first", () =>
    expect(rank(["sum", "node_sum", "su"], "su")).toEqual(["sum", "su", "node_sum"]));
  it("says common labels once", () => {
    const metrics = [
      { __name__: "a", gpu: "0", job: "j" },
      { __name__: "a", gpu: "1", job: "j" },
    ];
    expect(describeMetric(metrics[0] ?? {}, commonLabels(metrics))).toBe('{gpu="0"}');
    expect(commonLabels(metrics.slice(1))).toEqual(new Set());
  });
});

describe("the value axis", () => {
  /** As uPlot adds up its ticks: each must be larger than the one before, and there must be few of them. */
  const ticks = ([bottom, top]: [number, number]): number => {
    const step = (top - bottom) / 50;
    let count = 0;
    for (let value = bottom; value <= top && count < 1000; value += step) count++;
    return count;
  };
  const constants = [0, 5, 5e6, 8388608, 16777216, 2 ** 53, 1e16, 1e300, Number.MAX_VALUE, Number.MIN_VALUE, 1e-310];

  it.each(constants.flatMap((value) => [value, -value]))("of the constant %d ends", (value) => {
    const range = valueRange(value, value);
    expect(range.every(Number.isFinite)).toBe(true);
    expect(ticks(range)).toBeLessThan(60);
    expect(ticks(valueRange(value, value, 0))).toBeLessThan(60);
    if (Math.abs(value) < 1e300) {
      expect(range[0]).toBeLessThan(value);
      expect(range[1]).toBeGreaterThan(value);
    }
  });

  it("of any two numbers has a length that ticks can divide", () => {
    const words = new DataView(new ArrayBuffer(8));
    let seed = 20261118;
    const next = (): number => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return seed;
    };
    const anyNumber = (): number => {
      words.setUint32(0, next());
      words.setUint32(4, next());
      const value = words.getFloat64(0);
      return Number.isFinite(value) ? value : 0;
    };
    for (let round = 0; round < 5000; round++) {
      const first = anyNumber();
      // Half of the pairs are neighbours: their difference is near the precision of a number.
      const second = round % 2 ? anyNumber() : first * (1 + (next() % 8) * Number.EPSILON);
      const [low, high] = first < second ? [first, second] : [second, first];
      for (const [least, most] of [
        [null, null],
        [0, null],
        [null, 100],
        [0, 1],
      ] as const) {
        const range = valueRange(low, high, least, most);
        const about = `${low} ${high} ${least} ${most}`;
        expect(range.every(Number.isFinite), about).toBe(true);
        expect(ticks(range), about).toBeLessThan(60);
      }
    }
  });
});

describe("the command that adds a node", () => {
  it("names the node that its token is bound to", () => {
    const command = nodeCommand("https://gpus.example.org", "secret", "node7");
    expect(command).toContain("--remote-write 'https://gpus.example.org/api/v1/write'");
    expect(command.endsWith("--node 'node7'")).toBe(true);
    expect(nodeCommand("http://127.0.0.1:9470", "", "")).not.toContain("--node");
  });
});
