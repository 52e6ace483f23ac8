// A server that only looks like one: the built page, a fleet of any size that changes every second, and range queries
// answered with made-up curves. For measuring the page alone; no test of what is shown relies on it.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const PAGE = fileURLToPath(new URL("../../src/gpuscope/serve/page", import.meta.url));
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
/** How many in 200 GPUs are in which state; the rest is busy. */
const STATES = [
  ["held", 22],
  ["idle", 30],
  ["throttled", 2],
  ["sick", 1],
  ["lost", 1],
];

export function makeFleet(nodes, gpusEach, turn) {
  const now = Date.now() / 1000;
  const picture = {
    now,
    taken_at: now,
    simulated: true,
    source: "a stand-in",
    nodes: [],
    gpus: [],
    sessions: [],
    jobs: [],
    targets: [],
    findings: [],
  };
  for (let n = 0; n < nodes; n += 1) {
    const node = `node-${String(n + 1).padStart(3, "0")}`;
    picture.nodes.push({
      name: node,
      instance: node,
      stale: false,
      sources: [{ name: "nvml", up: true }],
      gpus_seen: gpusEach,
      gpus_expected: gpusEach,
    });
    for (let index = 0; index < gpusEach; index += 1) addGpu(picture, node, n * gpusEach + index, index, turn);
  }
  return picture;
}

function stateOf(place) {
  let left = Math.imul(place + 17, 2654435761) >>> 0;
  left = (left >>> 8) % 200;
  for (const [state, count] of STATES) {
    if (left < count) return state;
    left -= count;
  }
  return "busy";
}

function addGpu(picture, node, place, index, turn) {
  const state = stateOf(place);
  const busy = state === "held" || state === "idle" ? 0 : Math.abs(Math.sin(place + turn * 0.7));
  const uuid = `GPU-${String(place).padStart(8, "0")}-0000-0000-0000-000000000000`;
  const user = `user${place % 23}`;
  const used = state === "idle" ? 0 : 4e10 + (place % 9) * 4e9;
  picture.gpus.push({
    uuid,
    gpu: String(index),
    node,
    model: "NVIDIA H100 80GB HBM3",
    state,
    busy,
    memory_used: used,
    memory_total: 8.5e10,
    power: 80 + busy * 600,
    power_limit: 700,
    temperature: 34 + busy * 40,
    sm: busy * 0.8,
    tensor: busy * 0.4,
    dram: busy * 0.3,
    users: state === "idle" ? [] : [user],
    processes: state === "idle" ? 0 : 1,
    ...(state === "throttled"
      ? { why: "sw_thermal_slowdown" }
      : state === "sick"
        ? { why: "XID 48", since: 1.7e9 }
        : {}),
  });
  addFinding(picture, node, state, uuid, String(index), user);
  if (state === "idle") return;
  picture.sessions.push({
    uuid,
    gpu: String(index),
    node,
    pid: 1000 + place,
    type: "C",
    command: "python3",
    user,
    job: String(place >> 3),
    memory: used,
    sm: busy,
    since: 1.7e9,
    state: busy ? "active" : "idle",
  });
}

/** What a server would find: kind, severity, text key and arguments of each state that needs somebody. */
const FOUND = {
  lost: ["gpu_lost", "critical", { xid: 79 }],
  sick: ["xid_hardware", "critical", { xid: 48 }],
  throttled: ["throttled", "info", { reason: "sw_thermal_slowdown" }],
  held: ["held_idle", "info", {}],
};

const SENTENCES = {
  lost: "GPU {gpu} does not answer after XID 79",
  sick: "GPU {gpu}: XID 48, a hardware fault",
  throttled: "GPU {gpu} slowed down: heat (software)",
  held: "GPU {gpu} held by {user}, not used",
};
const STEPS = {
  lost: "drain the node, then follow the last XID, else power-cycle it",
  sick: "drain the node, then do what gpuscope explain xid N says",
  throttled: "improve cooling",
  held: "ask the holder to free what is no longer needed",
};

function addFinding(picture, node, state, uuid, gpu, user) {
  if (!(state in FOUND)) return;
  const [kind, severity, args] = FOUND[state];
  picture.findings.push({
    id: uuid,
    kind,
    severity,
    node,
    gpus: [gpu],
    uuids: [uuid],
    owner: { kind: "user", namespace: "", name: user, user: "" },
    since: Date.now() / 1000 - 7200,
    until: null,
    cost_gpu_hours: null,
    wasted_gpus: state === "held" || state === "lost" ? 1 : null,
    why: SENTENCES[state].replace("{gpu}", gpu).replace("{user}", user),
    why_key: kind,
    args,
    next: STEPS[state],
    next_key: kind,
    evidence: "up",
  });
}

function makeRange(parameters) {
  const [start, end, step] = ["start", "end", "step"].map((name) => Number(parameters.get(name)));
  const query = parameters.get("query") ?? "";
  const series = /uuid=~/.test(query) && !/xid|ecc|throttle|gpu=~/.test(query) ? 8 : /^600/.test(query) ? 1 : 0;
  return {
    status: "success",
    data: {
      resultType: "matrix",
      result: Array.from({ length: series }, (_, place) => {
        const values = [];
        for (let at = start; at <= end; at += step)
          values.push([at, /^600/.test(query) ? "5" : String(Math.abs(Math.sin(at / 900 + place)))]);
        return { metric: { gpu: String(place), uuid: `GPU-${place}` }, values };
      }),
    },
  };
}

export async function serveStandIn({ nodes, gpusEach }) {
  let turn = 0;
  const server = createServer((request, response) => {
    const url = new URL(request.url, "http://localhost");
    if (url.pathname === "/api/live/stream")
      return streamFleet(response, () => makeFleet(nodes, gpusEach, (turn += 1)));
    if (url.pathname === "/api/live") return sendJson(response, makeFleet(nodes, gpusEach, (turn += 1)));
    if (url.pathname === "/api/v1/query_range") return sendJson(response, makeRange(url.searchParams));
    if (url.pathname.startsWith("/api/"))
      return sendJson(response, { status: "success", data: { resultType: "vector", result: [] } });
    const name = normalize(url.pathname === "/" ? "/index.html" : url.pathname);
    try {
      const body = readFileSync(join(PAGE, name));
      response.writeHead(200, {
        "content-type": TYPES[extname(name)] ?? "application/octet-stream",
        "content-security-policy": "default-src 'self'",
      });
      return response.end(body);
    } catch {
      response.writeHead(404);
      return response.end();
    }
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { url: `http://127.0.0.1:${server.address().port}/`, turns: () => turn, close: () => server.close() };
}

const COLUMNS = {
  nodes: {},
  gpus: { busy: 100, sm: 100, tensor: 100, dram: 100, power: 1, temperature: 1, memory_used: 2 ** -20 },
  sessions: { sm: 100, memory: 2 ** -20 },
};
const LETTERS = Array.from({ length: 91 }, (_, at) => String.fromCharCode(35 + at)).filter((sign) => sign !== "\\");

/** As the server encodes it: one letter per row and number, `~` for a change that is far. */
function deltasOf(old, rows, name, perUnit) {
  const far = [];
  const letters = rows.map((row, at) => {
    const [before, now] = [Math.round(old[at][name] * perUnit), Math.round(row[name] * perUnit)];
    if (Math.abs(now - before) <= 44) return LETTERS[44 + now - before];
    far.push(now);
    return "~";
  });
  return { steps: letters.join(""), far };
}

function streamFleet(response, make) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  let old = make();
  const send = (name, data) => response.write(`event: ${name}\nid: a-1\ndata: ${JSON.stringify(data)}\n\n`);
  send("picture", { columns: COLUMNS, picture: old });
  const timer = setInterval(() => {
    const next = make();
    const change = { now: next.now, taken_at: next.taken_at };
    for (const table of ["gpus", "sessions"])
      change[table] = {
        numbers: Object.fromEntries(
          Object.entries(COLUMNS[table]).map(([name, perUnit]) => [
            name,
            deltasOf(old[table], next[table], name, perUnit),
          ]),
        ),
      };
    send("difference", change);
    old = next;
  }, 1000);
  response.on("close", () => clearInterval(timer));
}

function sendJson(response, body) {
  response.writeHead(200, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
}
