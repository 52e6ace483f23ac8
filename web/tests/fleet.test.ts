import { describe, expect, it } from "vitest";
import { arrange, colourHolders, holdersOf, leaves, levelOf, matches, powerOf, spreadOf, toWords } from "../src/fleet";
import type { GpuState, LiveGpu, LivePicture, LiveSession } from "../src/live";
import { filterSessions, groupSessions, roomForEach, sortSessions, toCsv, toJson, toRows } from "../src/sessions";
import { namespaceRows, podRows } from "../src/kubernetes";
import { sortSlurm } from "../src/slurm";

const gpu = (index: string, state: GpuState, more: Partial<LiveGpu> = {}): LiveGpu => ({
  uuid: `GPU-${index}`,
  gpu: index,
  node: "n1",
  model: "NVIDIA H100",
  state,
  users: [],
  processes: 0,
  in_use: false,
  ...more,
});
const session = (index: string, more: Partial<LiveSession> = {}): LiveSession => ({
  uuid: `GPU-${index}`,
  gpu: index,
  node: "n1",
  pid: 1,
  user: "lei",
  state: "active",
  ...more,
});
const picture = (gpus: LiveGpu[], sessions: LiveSession[] = [], more: Partial<LivePicture> = {}): LivePicture => ({
  now: 1000,
  simulated: false,
  source: "test",
  counts: { gpus: gpus.length, instances: 0, units: gpus.length, in_use: 0, free: 0, states: {} },
  jobs: [],
  nodes: [{ name: "n1", instance: "n1", sources: [], stale: false }],
  gpus,
  sessions,
  targets: [],
  left_out: 0,
  not_known: 0,
  findings: [],
  ...more,
});
const cellsOf = (shown: LivePicture) => arrange(shown)[0]?.cells ?? [];

describe("arrange", () => {
  it("puts instances into their board, and GPUs in nvidia-smi's order", () => {
    const shown = picture([
      gpu("10", "idle"),
      gpu("9", "idle"),
      gpu("9_7_0", "busy", { parent: "GPU-9" }),
      gpu("x_1_0", "busy", { parent: "GPU-gone" }),
    ]);
    expect(cellsOf(shown).map((cell) => [cell.gpu.gpu, cell.parts.length])).toEqual([
      ["9", 1],
      ["10", 0],
      ["x_1_0", 0],
    ]);
    expect(leaves(cellsOf(shown)).map((cell) => cell.gpu.gpu)).toEqual(["9_7_0", "10", "x_1_0"]);
  });
  it("shows nodes without GPUs", () => expect(arrange(picture([])).map((node) => node.name)).toEqual(["n1"]));
});

describe("power", () => {
  it("is the sum of what is known, and of how many", () => {
    const nodes = arrange(
      picture([gpu("0", "busy", { power: 300 }), gpu("1", "idle", { power: 0 }), gpu("2", "busy")]),
    );
    expect(powerOf(nodes)).toEqual({ watts: 300, of: 2 });
  });
  it("leaves out what is old", () => {
    const nodes = arrange(
      picture([gpu("0", "busy", { power: 300, busy: 1 }), gpu("1", "stale", { power: 500, busy: 0 })]),
    );
    expect(powerOf(nodes)).toEqual({ watts: 300, of: 1 });
    expect(spreadOf(nodes[0]?.cells ?? [])?.values).toEqual([1]);
  });
  it("is absent when no GPU gives one", () =>
    expect(powerOf(arrange(picture([gpu("0", "idle")]))).watts).toBeUndefined());
});

describe("spread", () => {
  it("tells one busy GPU and seven idle ones apart from eight at 12 %", () => {
    const shown = picture([..."01234567"].map((index) => gpu(index, "busy", { busy: index === "0" ? 0.98 : 0 })));
    expect(spreadOf(cellsOf(shown))).toMatchObject({ min: 0, median: 0, max: 0.98 });
  });
  it("leaves absent values out instead of taking them for 0", () => {
    expect(spreadOf(cellsOf(picture([gpu("0", "busy", { busy: 0.5 }), gpu("1", "lost")])))?.values).toEqual([0.5]);
    expect(spreadOf(cellsOf(picture([gpu("0", "lost")])))).toBeUndefined();
  });
});

it("draws absent as absent", () => {
  expect(levelOf(gpu("0", "idle"), "busy")).toBeUndefined();
  expect(levelOf(gpu("0", "idle", { memory_used: 1 }), "memory")).toBeUndefined();
  expect(levelOf(gpu("0", "busy", { sm: 0.3 }), "busy")).toBe(0.3);
  expect(levelOf(gpu("0", "busy", { power: 900, power_limit: 700 }), "power")).toBe(1);
});

it("finds a GPU by anything its user may know", () => {
  const [cell] = cellsOf(
    picture([gpu("0", "busy")], [session("0", { pod: "train-0", job: "77", command: "python3" })]),
  );
  if (!cell) throw new Error("no cell");
  for (const word of ["n1", "lei", "TRAIN-0", "77", "h100", "lei train"])
    expect(matches(cell, toWords(word), [])).toBe(true);
  expect(matches(cell, toWords("mia"), [])).toBe(false);
  expect(matches(cell, [], ["idle"])).toBe(false);
  expect(holdersOf(cell)).toEqual(["train-0"]);
});

it("names who was given a GPU that no process is on", () => {
  const [cell] = cellsOf(picture([gpu("0", "allocated", { jobs: ["7"], pods: ["ml/train-0"] })]));
  expect(cell && holdersOf(cell)).toEqual(["job 7", "train-0"]);
  expect(cell && matches(cell, toWords("ml/train"), [])).toBe(true);
});

it("counts a GPU that pods share once", () => {
  const shared = [session("0", { pod: "a", namespace: "ml" }), session("0", { pod: "b", namespace: "ml", pid: 2 })];
  const [row] = namespaceRows(podRows(picture([gpu("0", "busy")], shared), [], []));
  expect([row?.held, row?.working, row?.unused]).toEqual([1, 1, 0]);
});

describe("sessions", () => {
  const rows = toRows(
    [
      session("0", { memory: 5 }),
      session("1", { user: "=cmd()", pid: 2, state: "idle", command: 'a"b,c' }),
      session("1", { pid: 3, user: "lei", state: "unknown" }),
    ],
    [gpu("0", "busy"), gpu("1", "held")],
    new Map([["GPU-0/1", 0.5]]),
  );
  it("group by owner, and count held GPUs by the server's state", () => {
    expect(groupSessions(rows, "user").map((group) => [group.name, group.gpus, group.working, group.held])).toEqual([
      ["lei", 2, 1, 1],
      ["=cmd()", 1, 0, 1],
    ]);
  });
  it("sort with absent values last, both ways", () => {
    expect(sortSessions(rows, "memory", false).map((row) => row.memory)).toEqual([5, undefined, undefined]);
    expect(sortSessions(rows, "memory", true).map((row) => row.memory)).toEqual([5, undefined, undefined]);
  });
  it("filter by every word", () => expect(filterSessions(rows, "lei gpu1").map((row) => row.pid)).toEqual([3]));
  it("export cells that no spreadsheet runs, and absent as empty", () => {
    const [head, first, second] = toCsv(rows).split("\r\n");
    expect(head).toContain("memory_bytes,sm_ratio,sm_ratio_last_hour");
    expect(first).toBe("n1,0,GPU-0,lei,,,,,,1,,5,,0.5,,active");
    expect(second).toContain(`'=cmd()`);
    expect(second).toContain('"a""b,c"');
    expect(JSON.parse(toJson(rows))[1]).not.toHaveProperty("memory_bytes");
  });
});

describe("what is gone", () => {
  const gone = { since: 900, why: "connection refused", answered: true };
  const shown = picture([gpu("0", "gone", { since: 900, why: "connection refused" }), gpu("1", "gone")], [], {
    nodes: [
      { name: "n1", instance: "a:1", sources: [], stale: true, gone },
      {
        name: "b:1",
        instance: "b:1",
        sources: [],
        stale: true,
        gone: { since: 950, why: "no such host", answered: false },
      },
      { name: "n3", instance: "n3", sources: [], stale: false },
    ],
    targets: [
      { job: "j", instance: "a:1", url: "", ...gone },
      { job: "j", instance: "c:9100", url: "", since: 990, why: "timeout", answered: true },
    ],
  });
  it("is counted, but in no sum of now", () => {
    const nodes = arrange(shown);
    expect(nodes.map((node) => [node.name, node.gone?.since])).toEqual([
      ["b:1", 950],
      ["n1", 900],
      ["n3", undefined],
    ]);
    expect(powerOf(nodes)).toEqual({ watts: undefined, of: 0 });
    expect(spreadOf(nodes[1]?.cells ?? [])).toBeUndefined();
  });
});

describe("holders", () => {
  const held = (users: string[]) =>
    arrange(picture(users.map((user, at) => gpu(String(at), "busy", { users: [user], processes: 1 }))));
  const many = Array.from({ length: 12 }, (_, at) => `u${at}`);
  it("have eight colours, the largest first; the others are counted", () => {
    const found = colourHolders(held([...many, "u7", "u7", "u3"]));
    expect(found.shown.slice(0, 2)).toMatchObject([
      { name: "u7", count: 3 },
      { name: "u3", count: 2 },
    ]);
    expect(new Set(found.shown.map((one) => one.colour)).size).toBe(8);
    expect(found.others).toBe(4);
  });
  it("keep their colour while they are among the largest", () => {
    const first = colourHolders(held(["a", "a", "b"]));
    const then = colourHolders(held(["b", "b", "b", "a", "c"]), first.colours);
    for (const name of ["a", "b"]) expect(then.colours.get(name)).toBe(first.colours.get(name));
    expect(then.colours.get("c")).toBe(3);
  });
  it("have a colour before those who share a GPU", () => {
    const shared = (index: string): LiveSession[] => ["p1", "p2"].map((pod) => session(index, { pod }));
    const gpus = [...many.slice(0, 8).map((user, at) => gpu(String(at), "busy", { users: [user] })), gpu("8", "busy")];
    const found = colourHolders(arrange(picture(gpus, shared("8"))));
    expect(found.shown.map((one) => one.name)).toEqual(many.slice(0, 8));
    expect(found.others).toBe(1);
  });
});

describe("rows of grouped sessions", () => {
  it("are all shown where there is room, and small groups stay whole where there is not", () => {
    expect(roomForEach([24, 1, 2], 100)).toBe(24);
    expect(roomForEach([240, 1, 2], 100)).toBe(97);
    expect(roomForEach([240, 240, 2], 100)).toBe(49);
    expect(roomForEach([], 100)).toBe(0);
  });
});

it("tells a suspended job from one that runs", () => {
  const one = (name: string, job: string) => ({
    metric: { __name__: `gpuscope_slurm_${name}`, slurm_job: job },
    value: [1000, "1"] as [number, string],
  });
  const answer = [one("up", ""), one("job_info", "7"), one("job_info", "8"), one("job_suspended", "8")];
  const jobs = sortSlurm(answer, picture([]))?.jobs.map((job) => [job.job, job.suspended]);
  expect(jobs).toEqual([
    ["7", false],
    ["8", true],
  ]);
});

describe("a Slurm job's GPUs without a process", () => {
  const sample = (name: string, labels: Record<string, string>, value: number) => ({
    metric: { __name__: `gpuscope_slurm_${name}`, ...labels },
    value: [1000, String(value)] as [number, string],
  });
  const answer = [
    sample("up", {}, 1),
    sample("job_info", { slurm_job: "7" }, 1),
    sample("job_gpus", { slurm_job: "7" }, 4),
  ];
  const unused = (shown: LivePicture) => sortSlurm(answer, shown)?.jobs[0]?.unused;
  it("are those that it is known to have and that are read", () => {
    const own = { jobs: ["7"] };
    const gpus = [gpu("0", "busy", own), gpu("1", "idle", own), gpu("2", "lost", own), gpu("3", "stale", own)];
    expect(unused(picture(gpus, [session("0", { job: "7" })]))).toBe(1);
  });
  it("are none where nobody reads its node", () => expect(unused(picture([gpu("0", "idle")]))).toBe(0));
});
