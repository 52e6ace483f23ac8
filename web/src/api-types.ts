// Made by `make docs` from src/gpuscope/server/api_types/ and health/; do not edit it by hand.
// A key with `?` is left out where its value is not known.

/** Worst first. */
export const GPU_STATES = ["lost", "gone", "stale", "sick", "throttled", "held", "busy", "idle"] as const;
export type GpuState = (typeof GPU_STATES)[number];

/** What is wrong, in English, by `why_key`. */
export const FINDING_TEXTS = {
  allocated_unused: "GPU {gpus} allocated to {owner}, which has no process on it",
  ecc_mode_change: "GPU {gpus}: ECC mode changes at the next reboot",
  ecc_sram_threshold: "GPU {gpus}: too many SRAM errors",
  ecc_uncorrected: "GPU {gpus}: {count} uncorrectable memory errors",
  fabric_not_ready: "GPU {gpus} has not joined the NVLink fabric",
  fan_stopped: "GPU {gpus} is warm and a fan stands still",
  gpu_lost: "GPU {gpus} does not answer",
  "gpu_lost.xid": "GPU {gpus} does not answer after XID {xid}",
  gpus_missing: "{count} GPU missing of {expected} on the bus",
  held_idle: "GPU {gpus} held by {owner}, not used",
  host_memory_low: "Less than {percent} % of the node's memory is available",
  hot: "GPU {gpus} is about to slow down because of heat",
  long_running: "{owner} has been on GPU {gpus} for more than a week",
  memory_hot: "GPU {gpus}: memory is at its temperature limit",
  node_down: "No data from this node: {error}",
  "node_down.never": "This target has never answered: {error}",
  "node_down.silent": "No data from this node",
  node_stale: "No fresh numbers from this node",
  only_some_work: "{owner} works on GPU {working} only and leaves GPU {gpus} idle",
  orphan_memory: "GPU {gpus}: memory is taken and no process owns it",
  pages_retiring: "GPU {gpus}: memory pages wait to be retired",
  pcie_degraded: "GPU {gpus}: PCIe uses {lanes} of {max_lanes} lanes",
  persistence_off: "GPU {gpus}: persistence mode is off",
  power_limit_low: "GPU {gpus}: power limit {watts} W, the default is {default_watts} W",
  recovery_action: "GPU {gpus}: the driver asks for recovery action {action}",
  row_remap_failed: "GPU {gpus}: a memory row could not be replaced",
  row_remap_pending: "GPU {gpus}: a memory row is replaced at the next reset",
  source_down: "Source {source} does not answer",
  source_slow: "Source {source} needs more than {seconds} s for one read",
  spare_rows_out: "GPU {gpus}: a memory bank has no spare row left",
  target_down: "Scrape target does not answer: {error}",
  throttled: "GPU {gpus} slowed down: {reason}",
  xid_application: "GPU {gpus}: XID {xid}, caused by a program; the GPU is healthy",
  xid_driver: "GPU {gpus}: XID {xid}, a driver or firmware fault",
  xid_hardware: "GPU {gpus}: XID {xid}, a hardware fault",
  xid_nvlink: "GPU {gpus}: XID {xid}, an NVLink fault",
} as const;
export type FindingTextKey = keyof typeof FINDING_TEXTS;

/** Values of `next_key`. */
export type StepTextKey =
  | "allocated_unused"
  | "ecc_mode_change"
  | "ecc_sram_threshold"
  | "ecc_uncorrected"
  | "fabric_not_ready"
  | "fan_stopped"
  | "gpu_lost"
  | "gpus_missing"
  | "held_idle"
  | "host_memory_low"
  | "hot"
  | "long_running"
  | "memory_hot"
  | "node_down"
  | "node_down.never"
  | "node_stale"
  | "only_some_work"
  | "orphan_memory"
  | "pages_retiring"
  | "pcie_degraded"
  | "persistence_off"
  | "power_limit_low"
  | "recovery_action"
  | "row_remap_failed"
  | "row_remap_pending"
  | "source_down"
  | "source_slow"
  | "spare_rows_out"
  | "target_down"
  | "throttle.hw_power_brake_slowdown"
  | "throttle.hw_slowdown"
  | "throttle.hw_thermal_slowdown"
  | "throttle.sw_thermal_slowdown"
  | "throttle.sync_boost"
  | "xid.check_hardware"
  | "xid.contact_support"
  | "xid.follow_verdict"
  | "xid.none"
  | "xid.reboot_node"
  | "xid.reset_gpu"
  | "xid.restart_application"
  | "xid.update_software";

/** Who can act: the pod, else the Slurm job, else the container, else the user, else the process. */
export interface FindingOwnerJson {
  /** `none` where nobody is known. */
  kind: "pod" | "job" | "container" | "user" | "process" | "none";
  /** Namespace of a pod; empty for the others. */
  namespace: string;
  name: string;
  /** Whose Slurm job it is; empty for the others. */
  user: string;
}

/** One thing that is wrong. */
export interface FindingJson {
  /** Stable while the finding lasts. */
  id: string;
  /** Which check found it, for example `gpu_lost`, `held_idle` or `only_some_work`. */
  kind: string;
  severity: "critical" | "warning" | "info";
  /** Name of the node; of a scrape target its address. */
  node: string;
  /** nvidia-smi's indices, `0_7_0` for a MIG instance; empty if it is about the node. */
  gpus: string[];
  /** UUIDs of these GPUs and instances, in the same order. */
  uuids: string[];
  owner: FindingOwnerJson;
  /** When it began, in seconds since the epoch; null while that is not known. */
  since: number | null;
  /** When it ended; null while it lasts. */
  until: number | null;
  /** GPU-hours lost so far; null while that is not computed. */
  cost_gpu_hours: number | null;
  /** What is wrong, in one English sentence. */
  why: string;
  /** Key of that sentence, for other languages. */
  why_key: string;
  /** Values for the names in the sentence. */
  args: Record<string, string | number>;
  /** The next step, in English. */
  next: string;
  /** Key of the next step, for other languages. */
  next_key: string;
  /** A PromQL expression that shows the finding. */
  evidence: string;
}

/** Most severe first, then oldest. */
export interface FindingsAnswer {
  findings: FindingJson[];
}

/** A node or target that sends nothing. */
export interface GoneJson {
  /** The last scrape that succeeded, or the last sample of a node that pushed. */
  since: number;
  /** The scrape error; empty if it is not known. */
  why: string;
  /** False for a target that never answered; `since` is then the first try. */
  answered: boolean;
}

/** A scrape target that does not answer. */
export interface GoneTargetJson {
  job: string;
  instance: string;
  url: string;
  /** The last scrape that succeeded. */
  since: number;
  /** The scrape error. */
  why: string;
  /** False for a target that never answered; `since` is then the first try. */
  answered: boolean;
}

/** A source of numbers on a node. */
export interface LiveSource {
  name: string;
  up: boolean;
}

/** A node with a gpuscope agent. */
export interface LiveNode {
  name: string;
  /** Label `instance` of its series. */
  instance: string;
  /** When its newest numbers were read. */
  taken_at?: number;
  /** True if they are older than 30 s. */
  stale: boolean;
  sources: LiveSource[];
  gpus_seen?: number;
  gpus_expected?: number;
  /** Share of the CPU time that is busy, 0 to 1. */
  cpu?: number;
  load1?: number;
  /** Bytes of main memory. */
  memory_used?: number;
  memory_total?: number;
  /** Only of a node that sends nothing now. */
  gone?: GoneJson;
}

/** A GPU or a MIG instance. */
export interface LiveGpu {
  uuid: string;
  /** nvidia-smi's index, `0_7_0` for a MIG instance. */
  gpu: string;
  node: string;
  model?: string;
  /** UUID of the board of a MIG instance. */
  parent?: string;
  /** MIG profile. */
  profile?: string;
  state: "lost" | "gone" | "stale" | "sick" | "throttled" | "held" | "busy" | "idle";
  /** The reason of the state in a word: an XID, a throttle reason, a kind of finding, a scrape error. */
  why?: string;
  /** When the state began. */
  since?: number;
  /** Utilisation, 0 to 1. */
  busy?: number;
  /** Bytes. */
  memory_used?: number;
  memory_total?: number;
  /** Watts. */
  power?: number;
  power_limit?: number;
  /** Degrees Celsius. */
  temperature?: number;
  /** Share of the SMs that are active, 0 to 1. */
  sm?: number;
  tensor?: number;
  dram?: number;
  /** Users of the processes on it. */
  users: string[];
  processes: number;
}

/** A process on one GPU or MIG instance. */
export interface LiveSession {
  uuid: string;
  gpu: string;
  node: string;
  /** A text only if the label is not a number. */
  pid: number | string;
  type?: string;
  command?: string;
  user?: string;
  namespace?: string;
  pod?: string;
  container?: string;
  /** Slurm job. */
  job?: string;
  /** Bytes. */
  memory?: number;
  /** Share of the SMs' time, 0 to 1. */
  sm?: number;
  /** When the process started. */
  since?: number;
  /** When it last worked; only of an idle process. */
  idle_since?: number;
  state: "active" | "idle" | "unknown";
}

/** The fleet at one moment; made at most once a second and shared by all clients. */
export interface LivePicture {
  /** The server's time, in seconds since the epoch. */
  now: number;
  /** When the newest numbers were read. */
  taken_at?: number;
  /** True in a demo. */
  simulated: boolean;
  /** Where the numbers come from: `this process`, `store` or the URL of an engine. */
  source: string;
  nodes: LiveNode[];
  gpus: LiveGpu[];
  sessions: LiveSession[];
  /** Scrape targets that do not answer. */
  targets: GoneTargetJson[];
  /** The same list as in `/api/findings`. */
  findings: FindingJson[];
}

/** `GET /api/session`: who is logged in. */
export interface SessionAnswer {
  /** True on a server without a login; the other keys are then left out. */
  open?: boolean;
  user?: string;
  /** How the client proved it: `session`, `password`, `token` or `proxy`. */
  via?: string;
}

/** `POST /api/login`: the body of the request. */
export interface LoginRequest {
  user: string;
  password: string;
  /** The setup token that the server printed at its first start; creates the first user. */
  token?: string;
}

/** `POST /api/login`: the answer. A cookie carries the session. */
export interface LoginAnswer {
  user: string;
}

/** `POST /api/logout`: the answer. */
export interface LogoutAnswer {
  /** True on a server without a login. */
  open?: boolean;
}

/** Every refusal and failure, in the shape of Prometheus' errors. */
export interface ErrorAnswer {
  status: "error";
  errorType: string;
  /** One sentence for a person. */
  error: string;
  /** True with status 401: the client must log in. */
  login?: boolean;
  /** With status 401: true while no user exists yet. */
  setup?: boolean;
}

/** A simulated GPU under load. */
export interface LoadedGpuJson {
  /** nvidia-smi's index. */
  gpu: string;
  uuid: string;
  model?: string;
}

/** A load that has begun. */
export interface DemoLoadAnswer {
  node: string;
  gpus: LoadedGpuJson[];
  /** Seconds since the epoch. */
  ends_at: number;
}
