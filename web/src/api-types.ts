// Made by `make docs` from src/gpuscope/serve/api_types/ and health/; do not edit it by hand.
// A key with `?` is left out where its value is not known.

/** Worst first. */
export const GPU_STATES = ["lost", "gone", "stale", "sick", "throttled", "held", "allocated", "busy", "idle"] as const;
export type GpuState = (typeof GPU_STATES)[number];

/** What is wrong, in English, by `why_key`. Only tests read it: the server sends the sentence. */
export const FINDING_TEXTS = {
  allocated_unused: "GPU {gpus} allocated to {owner}, which has no process on it",
  "allocated_unused.some": "{owner} uses {used} of its allocated GPUs: no process on GPU {gpus}",
  clock_skew: "The node's clock is off by {seconds} s",
  clock_stuck: "GPU {gpus} works at less than half of its clock, and gives no reason",
  disk_filling: "{mountpoint} is nearly full, or will be within a day",
  ecc_corrected_rate: "GPU {gpus}: many corrected memory errors",
  ecc_mode_change: "GPU {gpus}: ECC mode changes at the next reboot",
  ecc_sram_threshold: "GPU {gpus}: too many SRAM errors",
  ecc_uncorrected: "GPU {gpus}: uncorrectable memory errors: {count}",
  fabric_not_ready: "GPU {gpus} has not joined the NVLink fabric",
  failed_jobs: "{count} programs of several users failed on GPU {gpus} within a day",
  fan_stopped: "GPU {gpus} is warm and a fan has stopped",
  gpu_count_dropped: "Fewer GPUs answer than some hours ago",
  gpu_lost: "GPU {gpus} does not answer",
  "gpu_lost.xid": "GPU {gpus} does not answer after XID {xid}",
  gpu_metrics_missing: "No GPU metrics arrive",
  gpus_missing: "GPUs missing: {count} of {expected} on the bus",
  held_idle: "GPU {gpus} held by {owner}, not used",
  host_memory_low: "Less than {percent} % of the node's memory is available",
  hot: "GPU {gpus} is about to slow down because of heat",
  hung: "GPU {gpus} hangs: full utilisation, little power, no traffic",
  hw_thermal: "GPU {gpus} is too hot and slows down",
  job_hangs: "{owner} hangs: all wait for rank {rank} on GPU {gpus}, which has launched less than they",
  "job_hangs.elsewhere": "{owner} hangs: all wait for rank {rank} on {host}",
  "job_hangs.silent": "{owner} hangs: all wait for rank {rank} on GPU {gpus}, whose process does not answer",
  link_errors: "GPU {gpus}: the link of {device} has {count} errors an hour",
  link_flaps: "GPU {gpus}: the link of {device} went down {count} times within an hour",
  long_running: "{owner} has been on GPU {gpus} for more than a week",
  memory_hot: "GPU {gpus}: memory is at its temperature limit",
  memory_leak: "{owner} will need more memory than GPU {gpus} has within two hours",
  node_down: "No data from this node: {error}",
  "node_down.never": "This target has never answered: {error}",
  "node_down.silent": "No data from this node",
  node_stale: "No fresh numbers from this node",
  notify_failing: "Alerts do not reach their receivers",
  nvlink_down: "GPU {gpus}: NVLink {link} is down",
  nvlink_errors: "GPU {gpus}: NVLink {link} has errors",
  only_some_work: "{owner} works on GPU {working} only and leaves GPU {gpus} idle",
  orphan_memory: "GPU {gpus}: memory is taken and no process has it",
  owner_labels_renamed: "The pods of GPUs are stored as exported_pod",
  pages_retiring: "GPU {gpus}: memory pages wait to be retired",
  "past.allocated_unused": "{owner} had no process on {count} of the GPUs allocated to it",
  "past.clock_skew": "The node's clock was off",
  "past.disk_filling": "A file system of this node was nearly full",
  "past.ecc_uncorrected": "GPU {gpus}: uncorrectable memory errors",
  "past.failed_jobs": "Programs of several users failed on GPU {gpus}",
  "past.gpu_lost": "GPU {gpus} did not answer",
  "past.gpus_missing": "GPUs of this node were missing",
  "past.held_idle": "{owner} held and did not use {count} of the GPUs",
  "past.host_memory_low": "The node's memory was nearly used up",
  "past.hung": "{count} of the GPUs of {owner} hung: full utilisation, little power, no traffic",
  "past.job_hangs": "{owner} hung: all waited for one rank",
  "past.link_errors": "GPU {gpus}: the link of its network port had errors",
  "past.link_flaps": "GPU {gpus}: the link of its network port went down again and again",
  "past.node_down": "No data from this node",
  "past.nvlink_down": "GPU {gpus}: an NVLink was down",
  "past.nvlink_errors": "GPU {gpus}: an NVLink had errors",
  "past.only_some_work": "{owner} left {count} of its GPUs idle while others worked",
  "past.orphan_memory": "GPU {gpus}: memory was taken and no process owned it",
  "past.pcie_degraded": "GPU {gpus}: PCIe used fewer lanes than card and slot have",
  "past.power_limit_low": "GPU {gpus}: the power limit was below the default",
  "past.queue_waits": "Jobs waited in Slurm's queue although GPUs were idle",
  "past.rail_down": "GPU {gpus}: its network port was down",
  "past.rail_slow": "GPU {gpus}: its network port was slower than it should be",
  "past.recovery_action": "GPU {gpus}: the driver asked for a recovery",
  "past.slow_sibling": "GPU {gpus} was slower than the others of its node under the same load",
  "past.slurm_dbd_backlog": "Accounting records waited for slurmdbd",
  "past.slurm_nodes_down": "Slurm called this node down or failed: it got no jobs",
  "past.slurm_queue_stuck": "Jobs waited although nodes were idle",
  "past.source_down": "A source of numbers did not answer",
  "past.source_slow": "Reading the driver took seconds",
  "past.target_down": "A scrape target did not answer",
  "past.throttled": "GPU {gpus} was slowed down",
  "past.unused": "Nobody used {count} of the GPUs",
  "past.waits_for_data": "{count} of the GPUs of {owner} waited for one busy thread",
  "past.waits_for_disk": "{count} of the GPUs of {owner} waited for file I/O",
  "past.waits_for_network": "{count} of the GPUs of {owner} waited for data from the network",
  "past.waits_for_rank": "{count} of the GPUs of {owner} waited for a slower rank",
  "past.xid_application": "GPU {gpus}: XIDs that programs caused",
  "past.xid_contained": "GPU {gpus}: XIDs of memory errors that were contained to one program",
  "past.xid_driver": "GPU {gpus}: XIDs of a driver or firmware fault",
  "past.xid_hardware": "GPU {gpus}: XIDs of a hardware fault",
  "past.xid_nvlink": "GPU {gpus}: XIDs of an NVLink fault",
  pcie_degraded: "GPU {gpus}: PCIe uses {lanes} of {max_lanes} lanes",
  pcie_generation: "GPU {gpus}: PCIe runs at a lower generation than card and slot have, under load",
  pcie_replays: "GPU {gpus}: PCIe packets are retransmitted",
  persistence_off: "GPU {gpus}: persistence mode is off",
  power_brake: "GPU {gpus}: the power supply tells it to slow down",
  power_brake_node: "The power supply tells several GPUs to slow down",
  power_limit_low: "GPU {gpus}: power limit {watts} W, the default is {default_watts} W",
  queue_waits: "Jobs wait in Slurm's queue although GPUs are idle: {count}",
  rail_down: "GPU {gpus}: its network port {device} is down",
  rail_slow: "GPU {gpus}: its network port {device} is slower than it should be",
  recovery_action: "GPU {gpus}: the driver asks for recovery action {action}",
  row_remap_failed: "GPU {gpus}: a memory row could not be replaced",
  row_remap_pending: "GPU {gpus}: a memory row is replaced at the next reset",
  rule_trouble: "Rules fail or are evaluated late: alerts may be missing",
  slow_sibling: "GPU {gpus} is slower than the others of its node that are as busy",
  slurm_dbd_backlog: "Accounting records that wait for slurmdbd: {count}",
  slurm_down: "Slurm does not answer: its numbers are missing",
  slurm_drained: "Slurm has drained this node: it gets no new jobs",
  slurm_nodes_down: "Slurm calls this node down or failed: it gets no jobs",
  slurm_queue_stuck: "Jobs wait although nodes are idle: {count}",
  source_down: "Source {source} does not answer",
  source_slow: "Source {source} needs more than {seconds} s for one read",
  spare_rows_out: "GPU {gpus}: a memory bank has no spare row left",
  store_trouble: "History is not stored, or part of it is damaged",
  sw_thermal: "GPU {gpus} keeps its temperature by lower clocks",
  target_down: "Scrape target does not answer: {error}",
  throttled: "GPU {gpus} slowed down: {reason}",
  unused: "GPU {gpus} has been used by nobody for a day",
  used_unallocated: "{owner} uses GPU {gpus} without an allocation by Slurm",
  waits_for_data: "GPU {gpus} of {owner} waits: one thread uses a whole core, the GPU is busy {busy} %",
  waits_for_disk: "GPU {gpus} waits: {owner} is blocked by file I/O {percent} % of the time",
  waits_for_network: "GPU {gpus} waits: {owner} waits for the network {percent} % of the time",
  waits_for_rank: "GPU {gpus} of {owner} waits for its slower rank on {slow}",
  xid_application: "GPU {gpus}: XID {xid}, caused by a program; the GPU is healthy",
  xid_contained: "GPU {gpus}: XID {xid}, a memory error that hit one program and was contained",
  xid_driver: "GPU {gpus}: XID {xid}, a driver or firmware fault",
  xid_hardware: "GPU {gpus}: XID {xid}, a hardware fault",
  xid_nvlink: "GPU {gpus}: XID {xid}, an NVLink fault",
} as const;
export type FindingTextKey = keyof typeof FINDING_TEXTS;

/** What to do next, in English, by `next_key`; read as above. */
export const STEP_TEXTS = {
  allocated_unused: "ask {owner} to request fewer GPUs",
  clock_skew: "check chrony or systemd-timesyncd on the node",
  clock_stuck: "look for locked clocks (nvidia-smi -rgc, -rac), then reset the GPU",
  disk_filling: "delete or move data; for gpuscope's own folder set --retention-bytes",
  ecc_corrected_rate: "watch the card; XID 92 confirms it",
  ecc_mode_change: "reboot to apply it, or find out who changed it",
  ecc_sram_threshold: "have the card replaced (RMA)",
  ecc_uncorrected: "drain the node, then nvidia-smi -r -i {gpu_list}",
  fabric_not_ready: "check the fabric manager or IMEX service, then reboot",
  failed_jobs: "run dcgmi diag -r 3 on the GPU, then NVIDIA's field diagnostic",
  fan_stopped: "replace the fan",
  gpu_count_dropped: "look for XID 79 in dmesg; set --expected-gpus where the number of GPUs is known",
  gpu_lost: "drain the node; do what its last XID says, else power-cycle",
  gpu_metrics_missing: "run gpuscope doctor --server URL; in Kubernetes check the ServiceMonitor's release label",
  gpus_missing: "look for XID 79 in dmesg; power-cycle the node; reseat the card if it stays away",
  held_idle: "ask {owner} to free what is no longer needed",
  host_memory_low: "see who uses it (ps --sort=-rss); lower the number of data-loader workers",
  hot: "check fans, airflow and dust",
  hung: "look at the program with py-spy dump --pid PID; a rank that is missing hangs all others",
  hw_thermal: "check fans, airflow, dust and thermal paste",
  job_hangs: "look at the process of that rank (py-spy dump --pid PID, /proc/PID/stack) and at its disks",
  link_errors: "clean or replace cable and transceiver; perfquery shows the counters of both ends",
  link_flaps: "replace the cable or transceiver; until then keep large jobs off the node",
  long_running: "ask {owner} whether it is meant to be",
  memory_hot: "check thermal pads and airflow",
  memory_leak: "tell its owner before it fails",
  node_down: "check power, network and the agent: systemctl status gpuscope-agent on the node",
  "node_down.never": "check the address in the configuration, the firewall, and that an agent runs there",
  node_stale: "read the agent's log; run gpuscope doctor on the node",
  notify_failing: "check the receiver's address and credentials; add a second channel",
  nvlink_down: "nvidia-smi nvlink -s; check the fabric manager, then reset the GPU",
  nvlink_errors: "check cable or bridge; run NVIDIA's field diagnostic",
  only_some_work: "ask {owner} to check CUDA_VISIBLE_DEVICES and the launcher (torchrun, device_map)",
  orphan_memory: "fuser -v /dev/nvidia*; reset the GPU if nobody is found",
  owner_labels_renamed: "set honor_labels: true in the scrape job, honorLabels: true in the ServiceMonitor",
  pages_retiring: "reboot the node; near 64 retired pages have the card replaced",
  pcie_degraded: "reseat the card; check riser and BIOS",
  pcie_generation: "reseat the card; check riser and BIOS",
  pcie_replays: "reseat the card; check riser and BIOS",
  persistence_off: "systemctl enable --now nvidia-persistenced",
  power_brake: "check power supplies, cables and the rack's feed",
  power_brake_node: "check the node's power supplies and the rack's feed",
  power_limit_low: "find out who ran nvidia-smi -pl",
  queue_waits: "squeue --start and scontrol show job JOB name what the jobs wait for: memory, CPUs or a partition",
  rail_down: "check cable, transceiver and switch port; ibstat shows the state of the port",
  rail_slow: "reseat cable and transceiver; check the switch port's speed and the adapter's slot",
  recovery_action: "do it: 1 reset, 2 reboot, 3 drain peers, 4 drain and reset, 5 IMEX domain, 6 bus reset, 7 reboot",
  row_remap_failed: "have the card replaced (RMA)",
  row_remap_pending: "reset the GPU at the next maintenance",
  rule_trouble: "look at lastError in /api/v1/rules; make slow rules cheaper",
  slow_sibling: "move the job and compare; run dcgmi diag",
  slurm_dbd_backlog: "check slurmdbd and its database",
  slurm_down: "check slurmctld, munge and slurmdbd",
  slurm_drained: "run sinfo -R; resume it if it is repaired",
  slurm_nodes_down: "run sinfo -R for the reason",
  slurm_queue_stuck: "look at the reasons in squeue, then at sdiag",
  "source.amdgpu": "check that the driver amdgpu is loaded (lspci -k -d 1002:) and read dmesg",
  "source.containers": "check Docker, Podman, containerd or CRI-O, and that the agent may open its socket",
  "source.dcgm": "check DCGM's service: systemctl status nvidia-dcgm, dcgmi discovery -l",
  "source.host": "check that the agent can read the host's /proc and /sys; mount them into a container",
  "source.intel-gpu": "check that the driver xe or i915 is loaded (lspci -k -d 8086:) and read dmesg",
  "source.job-files": "check the folder that Slurm's prolog writes: it must exist and be readable for the agent",
  "source.kernel-log": "let the agent read /dev/kmsg: as root or with CAP_SYSLOG; mount it into a container",
  "source.kubelet": "check the kubelet and its socket /var/lib/kubelet/pod-resources/kubelet.sock",
  "source.nvml": "run nvidia-smi on the node and read its error; after an upgrade of the driver reboot the node",
  "source.pods": "check the address of the kubelet or the API server, and the rights of the agent's service account",
  "source.process-owners": "check that the agent can read /proc of all users (hidepid; hostPID in a pod)",
  "source.slurm": "check slurmctld and munge: scontrol ping; squeue must work for the agent's user",
  "source.slurm-pids": "check slurmd on the node: systemctl status slurmd; scontrol listpids must work",
  source_down: "run gpuscope doctor on the node: it names what the source needs",
  source_slow: "switch persistence mode on (nvidia-persistenced); look for NVRM lines in dmesg",
  spare_rows_out: "plan a replacement",
  store_trouble: "free disk space; run gpuscope store check",
  sw_thermal: "improve the cooling; normal for desktops",
  target_down: "check the exporter at this address, or remove it from the configuration",
  "throttle.hw_power_brake_slowdown": "check power supplies, cables and the rack's feed",
  "throttle.hw_slowdown": "look at the temperature and at the power brake to see which",
  "throttle.hw_thermal_slowdown": "check fans, airflow and dust; compare with the other GPUs of the node",
  "throttle.liquid_thermal": "check pump, flow and the temperature of the coolant",
  "throttle.mem_thermal": "check fans, airflow and dust; compare with the other GPUs of the node",
  "throttle.memory_thermal": "check fans, airflow and dust; compare with the other GPUs of the node",
  "throttle.processor_hot": "check power supplies, fans and the board's management controller",
  "throttle.prochot": "check power supplies, fans and the board's management controller",
  "throttle.psys_crit": "check power supplies, cables and the rack's feed",
  "throttle.psys_pl1": "check power supplies, cables and the rack's feed",
  "throttle.psys_pl2": "check power supplies, cables and the rack's feed",
  "throttle.ratl": "check fans, airflow and dust; compare with the other GPUs of the node",
  "throttle.soc_avg_thermal": "check fans, airflow and dust; compare with the other GPUs of the node",
  "throttle.soc_thermal": "check fans, airflow and dust; compare with the other GPUs of the node",
  "throttle.socket_thermal": "check fans, airflow and dust; compare with the other GPUs of the node",
  "throttle.sw_thermal_slowdown": "improve the cooling; normal for desktop cards under full load",
  "throttle.sync_boost": "find the slow GPU of the group, or end the group (nvidia-smi boost-slider)",
  "throttle.thermal": "check fans, airflow and dust; compare with the other GPUs of the node",
  "throttle.vr_thermal": "check the airflow over the board",
  "throttle.vr_thermalert": "check the airflow over the board",
  throttled: "gpuscope explain throttle REASON says what to do",
  unknown_owner: "find out whose it is: nvidia-smi names the process, ps -o user,args -p PID its user",
  unused: "offer idle GPUs to users, or switch the node off",
  used_unallocated: "ask {owner} to submit a job; ConstrainDevices=yes and pam_slurm_adopt prevent it",
  waits_for_data: "raise the number of loader workers, or move decoding and augmentation to the GPU",
  waits_for_disk: "copy the data to a local disk, read fewer and larger files, or raise the number of loader workers",
  waits_for_network: "cache the data on the node, prefetch it, or raise the number of loader workers",
  waits_for_rank: "find out why the slower rank is slow: its clocks, its data, its share of the batch",
  "xid.check_hardware": "drain the node and check power cables, riser and slot",
  "xid.contact_support": "collect nvidia-bug-report.sh and contact support",
  "xid.follow_verdict": "do what the driver's recovery action says",
  "xid.none": "nothing now; watch whether it returns",
  "xid.reboot_node": "drain the node and power-cycle it; if it returns, reseat or replace the card",
  "xid.reset_gpu": "drain the node, then reset the GPU; if it returns, replace the card",
  "xid.restart_application": "restart the program; its owner finds the cause in its log",
  "xid.update_software": "update driver and firmware",
  xid_application: "tell the job's owner; do not drain the node",
  xid_contained: "restart the program; reset the GPU at the next maintenance",
  xid_driver: "drain the node and reset the GPU; update driver and firmware if it returns",
  xid_hardware: "drain the node and do what gpuscope explain xid N says",
  xid_nvlink: "look at NVLink counters, at the peer GPU and at the fabric manager",
} as const;
export type StepTextKey = keyof typeof STEP_TEXTS;

/** Sentences of reports and receipts, in English, by `key`; read as above. */
export const REPORT_TEXTS = {
  "missing.allocations":
    "Slurm gave away GPUs {count} times in the range, too many to read: GPUs that a job held without a process count as free on nodes without a prolog",
  "missing.allocations_refused":
    "the engine does not say which GPUs Slurm gave away: those that a job held without a process count as free on nodes without a prolog: {reason}",
  "missing.allocations_rolled_up":
    "{hours} h of the range are known from roll-ups only, which do not say which GPUs Slurm gave away: those that a job held without a process count as free on nodes without a prolog",
  "missing.fast_clock":
    "{node}: its counters grew {hours} h more than the range has: the clocks of the node and the server differ",
  "missing.filling": "the past is still being filled in: complete until {at}, where the report ends",
  "missing.first_seen": "{count} of {gpus} GPUs were first seen inside the range",
  "missing.kind": "{kind} is not known for {hours} h: {reason}",
  "missing.late": "the history begins {hours} h after the start of the range",
  "missing.late_at": "the history begins {hours} h after the start of the range, at {at}",
  "missing.left": "{count} GPUs sent nothing in the last 7 days; they count until their last sample",
  "missing.more_nodes": "{count} more nodes: {hours} GPU-hours lost",
  "missing.no_energy": "{hours} GPU-hours are without energy: the GPUs do not measure it, or several owners share them",
  "missing.no_gpu": "the history has no GPU in this range: no gpuscope agent, or older than the retention",
  "missing.no_history":
    "the range has no {metric}: no agent, one of an older version, or a range shorter than a scrape interval",
  "missing.no_label": "no pod of the history has the label {label}; agents export the labels that --pod-labels names",
  "missing.no_owner": "the history has no owner of kind {kind}: all {hours} h are unattributed",
  "missing.no_processes": "{hours} GPU-hours are without processes and owners: findings about use are not known there",
  "missing.no_rate": "no rate for model {model}: {hours} GPU-hours are not in the cost",
  "missing.node": "{node}: {hours} GPU-hours lost: the agent was down or a GPU did not answer",
  "missing.not_read": "{hours} GPU-hours are missing: the agent was down, or the GPU was not read",
  "missing.parts_differ": "the parts differ from the GPU-hours by {hours} h, more than 0.1 %",
  "missing.refused": "the engine refused {hours} h of the range, which are not in the report: {reason}",
  "missing.samples_gone":
    "samples of the first {hours} h are no longer kept; roll-ups have whole hours, so the report begins that much later",
  "missing.silent_node":
    "{node}: {hours} GPU-hours lost; no sample after {at}: the agent is down, or its samples have not arrived yet",
  "missing.some_processes": "{hours} GPU-hours are without processes and owners, or between MIG instances",
  "missing.unread": "{hours} h of the range are not read yet; ask again in a minute",
  "note.early":
    "each GPU counts from its last reading before the start; together {hours} h more than its range of {range_hours} h",
  "note.kept": "samples are kept for {days} days, roll-ups for {rollup_days} days",
  "note.kept_by_engine": "{product} keeps samples and roll-ups for {days} days",
  "note.mig_energy": "energy of MIG instances is an estimate: by slices at idle power, by activity above it",
  "note.retention_unknown": "roll-ups live as long as the engine's retention, which it does not say",
  "note.rollups": "read from roll-ups: {hours} h, from samples: {sample_hours} h",
  "receipt.all_unused": "None of its GPUs was used.",
  "receipt.idle_job": "A GPU was idle for {hours} h at a stretch; end a job when its work is done.",
  "receipt.idle_pod": "A GPU was idle for {hours} h at a stretch; end a pod when its work is done.",
  "receipt.low": "Its GPUs were busy {busy} % of the time.",
  "receipt.low.waits_for_data":
    "Its GPUs were busy {busy} % of the time; one thread used a whole core {percent} % of the time.",
  "receipt.low.waits_for_disk": "Its GPUs were busy {busy} % of the time; file I/O blocked it {percent} % of the time.",
  "receipt.low.waits_for_network":
    "Its GPUs were busy {busy} % of the time; it waited for the network {percent} % of the time.",
  "receipt.low_memory": "It used at most {percent} % of a GPU's memory; a smaller GPU or MIG instance would do.",
  "receipt.short": "It ran for {percent} % of its time limit; jobs with a shorter limit start sooner.",
  "receipt.throttled": "A GPU was slowed down ({reason}) for {percent} % of the time.",
  "receipt.uneven": "Its GPUs worked unevenly, from {low} to {high} % of the time.",
  "receipt.unused": "{count} of {gpus} GPUs were never used.",
  "receipt.waits_for_rank": "Its GPUs spun and waited for a slower one {percent} % of the time.",
  "receipt.xid": "XID {xid} occurred {count} times on its GPUs.",
  "receipt.xid_once": "XID {xid} occurred once on its GPUs.",
  "unknown.array": "{count} more tasks of the array: each has a receipt, {job}_TASK",
  "unknown.before": "what it did before {at}, if it was there: its GPUs were not read then",
  "unknown.energy": "its energy: the GPUs do not measure it, or several owners share them",
  "unknown.filling": "what it did after {at}: the past is still being filled in",
  "unknown.first_hours": "its first {hours} h, until {at}: its GPUs were not read then",
  "unknown.gaps": "{hours} GPU-hours of its time: the agent was down, or a GPU did not answer",
  "unknown.host": "CPU and main memory; `{command}` shows them",
  "unknown.memory": "its peak GPU memory",
  "unknown.requested_job": "how many GPUs it requested: no agent reads Slurm (docs/slurm.md)",
  "unknown.requested_job_not_listed": "how many GPUs it requested: Slurm did not list it when it was read",
  "unknown.requested_pod": "how many GPUs it requested: the history has no allocation of it",
  "unknown.waited": "how long it waited: no agent reads Slurm (docs/slurm.md)",
  "unknown.waited_not_listed": "how long it waited: Slurm did not list it when it was read",
  "unknown.work": "the work of {hours} GPU-hours: the driver does not measure it by process",
} as const;
export type ReportTextKey = keyof typeof REPORT_TEXTS;

/** Who can act: the pod, else the Slurm job, else the container, else the user, else the process. */
export interface FindingOwnerJson {
  /** `none` if the owner is not known. */
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
  /** The driver's indices, `0_7_0` for a MIG instance; empty if it is about the node. */
  gpus: string[];
  /** UUIDs of these GPUs and instances, in the same order. */
  uuids: string[];
  owner: FindingOwnerJson;
  /** When it began, in seconds since the epoch; null while that is not known. */
  since: number | null;
  /** When it ended; null while it lasts. */
  until: number | null;
  /** GPU-hours lost until `cost_at`; null if it costs none, or while the history of its GPUs is not read. */
  cost_gpu_hours: number | null;
  /** How many GPU-hours it costs each hour after `cost_at`: 1 for a whole GPU, less for a MIG instance, a shared or a slow GPU; null unless it lasts. */
  wasted_gpus: number | null;
  /** Until when `cost_gpu_hours` is counted, in seconds since the epoch. In `/api/findings` that is now, in `/api/live` up to some minutes ago. */
  cost_at: number | null;
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

/** A check that the engine has not answered for more than a minute. */
export interface NotKnownJson {
  kind: string;
  /** The engine's error, in English. */
  reason: string;
}

/** `GET /api/findings`: most severe first, then oldest. */
export interface FindingsAnswer {
  findings: FindingJson[];
  /** Kinds that cannot be judged now: that they have no finding says nothing. */
  not_known: NotKnownJson[];
}

/** A finding over a time range; `until` is null if it holds at the end, `node` is empty for several. */
export interface PastFindingJson extends FindingJson {
  /** How long it held; of several GPUs the longest. */
  hours: number;
  /** How many times it began. */
  times: number;
  /** `cost_gpu_hours` in money; null without a rate for the model, or if it cost no GPU time. */
  cost: number | null;
  nodes: string[];
  /** Slurm jobs of the owner, the five with the most lost hours. */
  jobs: string[];
  /** Address of the evidence in the page, relative to the server's. */
  link: string;
}

/** Small findings of one kind, added up. */
export interface FoldedFindingsJson {
  kind: string;
  count: number;
  cost_gpu_hours: number;
  cost: number | null;
}

/** Which part of the range is known: `gpu_hours` = `known_gpu_hours` + `missing_gpu_hours`. */
export interface CoverageJson {
  gpus: number;
  /** Hours of all GPUs, each from its first sample on. */
  gpu_hours: number;
  known_gpu_hours: number;
  missing_gpu_hours: number;
  /** English sentences about what is not known. */
  missing: string[];
  /** The same sentences by key. */
  missing_keys: SentenceJson[];
}

/** `GET /api/findings?since=7d`: most expensive first; findings without a cost last. */
export interface PastFindingsAnswer {
  /** Start of the range. */
  since: number;
  /** End of the range. */
  until: number;
  findings: PastFindingJson[];
  /** Small findings by kind, most expensive first. */
  folded: FoldedFindingsJson[];
  /** Of all findings, folded ones too. A GPU-hour counts once, under the first kind that claims it. */
  cost_gpu_hours: number;
  /** In money; null without rates. Models without a rate are not in it. */
  cost: number | null;
  /** The rates as they were given, per GPU-hour. */
  rate?: string;
  /** Models without a rate. */
  unpriced_models: string[];
  coverage: CoverageJson;
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
  /** Label `job` of its series; absent if this process collects the node itself. */
  job?: string;
  /** Of its agent. */
  version?: string;
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
  /** The driver's index, `0_7_0` for a MIG instance. */
  gpu: string;
  node: string;
  model?: string;
  /** UUID of the board of a MIG instance. */
  parent?: string;
  /** MIG profile. */
  profile?: string;
  state: "lost" | "gone" | "stale" | "sick" | "throttled" | "held" | "allocated" | "busy" | "idle";
  /** The reason of the state in a word: an XID, a throttle reason, a kind of finding, a scrape error; of a `stale` GPU that answers `processes_unknown` or `allocation_unknown`: nobody knows whether it is free. */
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
  /** Slurm jobs that it is allocated to; `LivePicture.jobs` has more about them. */
  jobs?: string[];
  /** Pods that it is allocated to, as `namespace/name`. */
  pods?: string[];
  /** Absent if its process list could not be read. */
  processes?: number;
  /** True if a process or an allocation is on it; false if that is not known (lost, gone, stale). */
  in_use: boolean;
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
  /** Slurm job; `LivePicture.jobs` has more about it. */
  job?: string;
  /** Bytes. */
  memory?: number;
  /** Share of the SMs' time, 0 to 1. */
  sm?: number;
  /** When the process started. */
  since?: number;
  /** CPU time as a share of one core, over the last minute. */
  cpu?: number;
  /** Share of the last minute in which its main thread ran. */
  run?: number;
  /** Share of the last minute in which its busiest thread, or a child, ran or waited for a core. */
  busiest_thread?: number;
  /** Share of the last minute in which it, or the child that waits most, was blocked by I/O. */
  io_wait?: number;
  /** The same for data from the network. */
  network_wait?: number;
  /** Bytes of main memory. */
  resident_memory?: number;
  /** Number of child processes. */
  children?: number;
  /** Their CPU time as a share of one core. */
  children_cpu?: number;
  /** When it last worked; only of an idle process. */
  idle_since?: number;
  state: "active" | "idle" | "unknown";
}

/** A Slurm job that holds or uses GPUs of the fleet. */
export interface LiveJob {
  /** Slurm's own number. */
  job: string;
  /** `9_1`: the array's job and the task in it. */
  array?: string;
  name?: string;
  user?: string;
  account?: string;
  partition?: string;
  /** When its time limit ends it, in seconds since the epoch. */
  ends_at?: number;
}

/** How many there are. A unit is a GPU that is not split, or a MIG instance; each counts once, however many
processes, pods or jobs share it. */
export interface LiveCounts {
  /** GPUs, split or not. */
  gpus: number;
  /** MIG instances. */
  instances: number;
  units: number;
  /** Units that a process or an allocation is on. */
  in_use: number;
  /** Units in state `idle`. */
  free: number;
  /** Units by state; a state that no unit has is left out. */
  states: Record<string, number>;
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
  counts: LiveCounts;
  /** Nodes for which there is no room (`live_max_subjects`): they are in no list and no count. Nodes that this server reads itself, and those whose write token is bound to them, come first. */
  left_out: number;
  /** Checks that say nothing of now: they cannot be evaluated, or the history is still filled in. `/api/findings` says which, and why. */
  not_known: number;
  nodes: LiveNode[];
  gpus: LiveGpu[];
  sessions: LiveSession[];
  /** Slurm jobs on the GPUs above. */
  jobs: LiveJob[];
  /** Scrape targets that do not answer. */
  targets: GoneTargetJson[];
  /** The same list as in `/api/findings`. */
  findings: FindingJson[];
}

/** Which keys are sent as columns of whole numbers, and how many of them make 1 of the key's unit. */
export interface StreamColumns {
  nodes: Record<string, number>;
  gpus: Record<string, number>;
  sessions: Record<string, number>;
}

/** Event `picture`: the first event, or the next one for a client that is too far behind. */
export interface StreamPicture {
  /** Numbers of the picture are rounded to these units: 100 is a step of 0.01. */
  columns: StreamColumns;
  picture: LivePicture;
}

/** A row and its place in the list. */
export interface PlacedNode {
  at: number;
  row: LiveNode;
}

/** A row and its place in the list. */
export interface PlacedGpu {
  at: number;
  row: LiveGpu;
}

/** A row and its place in the list. */
export interface PlacedSession {
  at: number;
  row: LiveSession;
}

/** A row and its place in the list. */
export interface PlacedJob {
  at: number;
  row: LiveJob;
}

/** A row and its place in the list. */
export interface PlacedFinding {
  at: number;
  row: FindingJson;
}

/** The change of one number of every row. */
export interface ColumnDeltas {
  /** One character per row, in the order of the rows: `O` for no change, the next in ASCII for one step more (without the backslash), `~` for a change that is in `far`. */
  steps: string;
  /** The new number of each `~`, in steps; null if it is absent now. */
  far?: (number | null)[];
}

/** Changes of `nodes`, in this order: `removed`, `added`, `replaced`, `numbers`. */
export interface NodeChanges {
  /** Places in the old list, ascending. */
  removed?: number[];
  /** Places in the new list, ascending. */
  added?: PlacedNode[];
  /** Places in the new list. */
  replaced?: PlacedNode[];
  /** By key, for all rows of the new list. */
  numbers?: Record<string, ColumnDeltas>;
}

/** Changes of `gpus`, as in NodeChanges. */
export interface GpuChanges {
  removed?: number[];
  added?: PlacedGpu[];
  replaced?: PlacedGpu[];
  numbers?: Record<string, ColumnDeltas>;
}

/** Changes of `sessions`, as in NodeChanges. */
export interface SessionChanges {
  removed?: number[];
  added?: PlacedSession[];
  replaced?: PlacedSession[];
  numbers?: Record<string, ColumnDeltas>;
}

/** Changes of `jobs`, as in NodeChanges. */
export interface JobChanges {
  removed?: number[];
  added?: PlacedJob[];
  replaced?: PlacedJob[];
}

/** Changes of `findings`, as in NodeChanges. */
export interface FindingChanges {
  removed?: number[];
  added?: PlacedFinding[];
  replaced?: PlacedFinding[];
}

/** Event `difference`: what changed since the event before. A key that is left out did not change. */
export interface LiveDifference {
  now: number;
  taken_at?: number;
  counts?: LiveCounts;
  left_out?: number;
  not_known?: number;
  nodes?: NodeChanges;
  gpus?: GpuChanges;
  sessions?: SessionChanges;
  jobs?: JobChanges;
  findings?: FindingChanges;
  /** All of them, if one changed. */
  targets?: GoneTargetJson[];
}

/** Event `clock`, before each group of events: the server's time when they are sent. */
export interface StreamClock {
  now: number;
}

/** Event `problem`: the numbers cannot be read at the moment; the last picture stays. */
export interface StreamProblem {
  error: string;
}

/** One entry of a receiver, for instance its first `email_configs`. */
export interface ChannelJson {
  /** `RECEIVER/KIND[POSITION]`. */
  channel: string;
  receiver: string;
  /** `webhook`, `email`, `slack`, … */
  kind: string;
  /** Whom it reaches: mail addresses, a Slack channel, a host name; never a secret, and empty if not known. */
  sent_to: string;
  /** False while its last message was not accepted; null before the first one. */
  up: boolean | null;
  last_error: string;
  failing_since: number | null;
  /** Since the server started. */
  last_sent_at: number | null;
  /** Since the server started. */
  sent: number;
  /** Attempts that failed since the server started. */
  failed: number;
}

/** `GET /api/notify`: the channels, and the last reload of the alerting file. */
export interface NotifyAnswer {
  channels: ChannelJson[];
  /** Why the current file is not in use: file, line and reason; empty if it is. */
  reload_error: string;
  reloaded_at: number;
}

/** An alert in a message. */
export interface NotifiedAlertJson {
  /** As in Alertmanager's `/api/v2/alerts`. */
  fingerprint: string;
  status: "firing" | "resolved";
  labels: Record<string, string>;
}

/** One message to one channel about one group of alerts. */
export interface NotificationJson {
  /** Grows with time. */
  id: number;
  channel: string;
  receiver: string;
  kind: string;
  /** As in ChannelJson. */
  sent_to: string;
  started_at: number;
  /** Null while it is being sent or waits for the next attempt. */
  finished_at: number | null;
  /** `failed`: given up; the group's next flush sends what is current then. */
  outcome: "sending" | "sent" | "failed";
  attempts: number;
  /** Of the last attempt; empty if that was accepted. */
  error: string;
  /** `resolved` if no alert in it fires. */
  status: "firing" | "resolved";
  /** Why it was sent, in Alertmanager's words: `first notification`, `new alerts added`, … */
  reason: string;
  group_labels: Record<string, string>;
  /** Number of alerts. */
  firing: number;
  resolved: number;
  /** The first ones, at most 20. */
  alerts: NotifiedAlertJson[];
  /** Above 0 for repetitions of a message, which are one record: how many there were. */
  repeats: number;
}

/** `GET /api/notifications`: newest first. Survives a restart; the oldest are forgotten. */
export interface NotificationsAnswer {
  notifications: NotificationJson[];
  /** Value of `before` for the next page; null on the last one. */
  next: number | null;
}

/** What became of a test message. */
export interface TestedChannelJson {
  channel: string;
  sent_to: string;
  /** Empty if the channel accepted it. */
  error: string;
}

/** `POST /api/notify/test`: the body of the request. */
export interface NotifyTestRequest {
  receiver: string;
}

/** `POST /api/notify/test`: one entry for each channel of the receiver. */
export interface NotifyTestAnswer {
  channels: TestedChannelJson[];
}

/** One owner, node, model or MIG profile. Hours are GPU-hours: held = busy + idle + unknown. */
export interface ReportRowJson {
  /** Empty if it is not known, or without the label that the report is by. */
  name: string;
  /** Namespace of a pod; empty for the others. */
  namespace: string;
  /** Held. A shared GPU is split, a MIG instance counts by its compute slices. */
  gpu_hours: number;
  /** SM time; null if nothing is known about it. */
  busy_hours: number | null;
  /** Held, and neither busy nor unknown. */
  idle_hours: number | null;
  /** Held, and the work is not known, as on a MIG instance with several owners. */
  unknown_hours: number;
  /** Of the idle hours: stretches of 15 minutes and more without work. */
  idle_held_hours: number;
  energy_kwh: number | null;
  /** True with the energy of MIG instances. */
  energy_is_estimate: boolean;
  /** Null without a rate for it. */
  cost: number | null;
  /** Held hours that are not in the cost. */
  unpriced_hours: number;
  /** Null without a CO₂ factor. */
  co2_kg: number | null;
}

/** Where every hour of every GPU went: the five parts add up to `gpu_hours`. */
export interface ReportInvariantJson {
  gpu_hours: number;
  /** Of the rows. */
  owners: number;
  /** Held, and not by an owner of the report's kind. */
  unattributed: number;
  free: number;
  /** The GPU was not read: its agent was down, or it did not answer. */
  lost: number;
  /** Compute slices of a split GPU that no MIG instance has. */
  stranded: number;
  /** The parts minus `gpu_hours`; more than 0.1 % of it is also said in `missing`. */
  difference: number;
}

/** GPU-hours of one part of the range, for a plot. */
export interface ReportBucketJson {
  start: number;
  end: number;
  busy: number;
  idle: number;
  unknown: number;
  free: number;
  lost: number;
  stranded: number;
}

/** A part of the range, and where its numbers come from. */
export interface ReportPieceJson {
  start: number;
  end: number;
  /** Samples, or hourly or daily roll-ups. */
  source: "samples" | "hourly" | "daily";
}

/** What a GPU-hour or a kWh costs. */
export interface ReportRateJson {
  /** As given: `H100=2.5,*=1`. */
  text: string;
  /** Per GPU-hour held, per GPU-hour used, or per kWh. */
  basis: "held" | "used" | "kWh";
}

/** A sentence by key, for other languages. */
export interface SentenceJson {
  key: string;
  /** Values for the names in the sentence. */
  args: Record<string, string | number>;
}

/** A usage report. Times are seconds since the epoch. */
export interface ReportAnswer {
  kind: "usage" | "idle";
  /** `user`, `account`, `pod`, `namespace`, `job`, `node`, `model`, `mig-profile` or `label:NAME`. */
  by: string;
  start: number;
  end: number;
  gpus: number;
  /** Most hours held first; of kind `idle`, most idle hours first. */
  rows: ReportRowJson[];
  /** The sum of all rows, also of those that were left out. */
  total: ReportRowJson;
  /** Rows beyond `--report-max-rows`. */
  rows_left_out: number;
  invariant: ReportInvariantJson;
  buckets: ReportBucketJson[];
  pieces: ReportPieceJson[];
  /** What is not known, in hours, in English sentences. */
  missing: string[];
  /** The same sentences by key. */
  missing_keys: SentenceJson[];
  /** How the numbers were made, in English sentences. */
  notes: string[];
  /** The same sentences by key. */
  notes_keys: SentenceJson[];
  rate?: ReportRateJson;
  co2_grams_per_kwh?: number;
}

/** A GPU or MIG instance that the job held. */
export interface JobGpuJson {
  node: string;
  /** The driver's index, `0_7_0` for a MIG instance. */
  gpu: string;
  uuid: string;
  model: string;
  /** MIG profile; empty for a whole GPU. */
  profile: string;
  held_seconds: number;
  /** Its share: a shared GPU is split, a MIG instance counts by its slices. */
  gpu_hours: number;
  /** Of the time in which the work is known; null if it never is. */
  busy_ratio: number | null;
  unknown_hours: number;
  energy_joules: number | null;
  memory_peak_bytes: number | null;
  memory_total_bytes: number | null;
  longest_idle_seconds: number | null;
}

/** Something that would help. */
export interface JobNoteJson extends SentenceJson {
  /** In English. */
  text: string;
  command: string;
}

/** One run of a job that was requeued, or one of several pods that had the same name. */
export interface JobRunJson {
  started_at: number;
  ended_at: number;
  run_seconds: number;
  gpus: number;
  gpu_hours: number;
  efficiency: number | null;
}

/** The receipt of a Slurm job or a pod. Times are seconds since the epoch; null is not known. */
export interface JobAnswer {
  kind: "job" | "pod";
  name: string;
  namespace: string;
  user: string;
  account: string;
  partition: string;
  job_name: string;
  running: boolean;
  started_at: number;
  run_seconds: number;
  limit_seconds: number | null;
  /** From submission to start. */
  waited_seconds: number | null;
  requested_gpus: number | null;
  gpus: JobGpuJson[];
  gpu_hours: number;
  busy_hours: number | null;
  unknown_hours: number;
  /** Busy share of the time in which the work is known, 0 to 1. */
  efficiency: number | null;
  efficiency_line: string;
  lowest_busy_ratio: number | null;
  highest_busy_ratio: number | null;
  idle_ratio: number | null;
  longest_idle_seconds: number | null;
  peak_memory_ratio: number | null;
  energy_kwh: number | null;
  energy_is_estimate: boolean;
  /** By reason, of the GPU that was throttled longest. */
  throttled_seconds: Record<string, number>;
  /** Number of XID errors by code. */
  xids: Record<string, number>;
  /** All of them, oldest first; the receipt is of the last one. */
  runs: JobRunJson[];
  /** At most five, each with the command that helps. */
  notes: JobNoteJson[];
  /** English sentences. */
  not_known: string[];
  /** The same sentences by key. */
  not_known_keys: SentenceJson[];
}

/** `GET /api/session`: who is logged in. */
export interface SessionAnswer {
  /** True on a server without a login; `user` and `via` are then left out. */
  open?: boolean;
  user?: string;
  /** How the client proved it: `session`, `password`, `token` or `proxy`. */
  via?: string;
  /** A viewer reads; an editor also silences alerts and sends test messages; an admin may do everything. */
  role: "viewer" | "editor" | "admin";
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

/** A user who can log in. */
export interface UserJson {
  name: string;
  role: "viewer" | "editor" | "admin";
  created_at: number;
}

/** An API token; the token itself is shown once, when it is created. */
export interface TokenJson {
  name: string;
  /** A role, or `write`, which only sends samples by remote write. */
  permits: "viewer" | "editor" | "admin" | "write";
  /** The only node whose samples a `write` token may send; empty: of every node. */
  node: string;
  created_at: number;
}

/** `GET /api/users`; needs an admin. */
export interface UsersAnswer {
  users: UserJson[];
  tokens: TokenJson[];
}

/** `POST /api/users`; needs an admin. */
export interface NewUserRequest {
  name: string;
  password: string;
  role: "viewer" | "editor" | "admin";
}

/** `POST /api/users/NAME/role`; needs an admin. */
export interface RoleRequest {
  role: "viewer" | "editor" | "admin";
}

/** `POST /api/tokens`; needs an admin. */
export interface NewTokenRequest {
  name: string;
  permits: "viewer" | "editor" | "admin" | "write";
  /** Binds a `write` token to the samples of this node. */
  node?: string;
}

/** The token that was created; only its digest is stored. */
export interface NewTokenAnswer {
  token: string;
}

/** A change that was made. */
export interface DoneAnswer {
  done: boolean;
}

/** One change that a client requested. */
export interface AuditEntry {
  /** RFC 3339. */
  time: string;
  /** Empty on a server without a login. */
  user: string;
  role: string;
  via: string;
  address: string;
  /** Method and path. */
  action: string;
  /** The HTTP status: 200 and above were done, 400 and above refused. */
  status: number;
  detail: string;
}

/** `GET /api/audit`: the newest first; needs an admin. */
export interface AuditAnswer {
  entries: AuditEntry[];
}

/** `GET /api/server`: the server itself, its history and its disk. */
export interface ServerAnswer {
  version: string;
  started_at: number;
  has_login: boolean;
  data_folder?: string;
  retention_seconds?: number;
  /** Left out if history is limited by time only. */
  retention_bytes?: number;
  /** Size of the data folder. */
  disk_bytes?: number;
  /** Free space of the disk that it is on. */
  disk_free_bytes?: number;
  /** The oldest sample that is kept. */
  oldest_at?: number;
  series?: number;
  /** What counts towards `max_series`: eight series that have ended count as one. */
  counted_series?: number;
  max_series?: number;
  /** URL of the engine behind `--store`; the keys of the own store are then left out. */
  engine?: string;
}

/** Files that are read together; one mistake in them leaves the previous ones in use. */
export interface ReloadedFilesJson {
  /** Why the last reload was refused: file, line and reason; empty if it was not. */
  error: string;
  /** When what is in use was read. */
  loaded_at: number;
}

/** The last reload, at SIGHUP. */
export interface ReloadAnswer {
  /** Configuration and rule files. */
  rules: ReloadedFilesJson;
  /** The file of `--idle-policy`. */
  idle_policy: ReloadedFilesJson;
  /** The file of `--alerting`, or `--notify`. */
  alerting: ReloadedFilesJson;
}

/** Addresses as the reader's browser reaches them. */
export interface LinksAnswer {
  /** Grafana with the dashboards of `gpuscope render grafana`; absent without `--grafana-url`. */
  grafana?: string;
}

/** A simulated GPU under load. */
export interface LoadedGpuJson {
  /** The driver's index. */
  gpu: string;
  uuid: string;
  model?: string;
  /** Of a load that copies: the simulated bytes, in both directions together. */
  bytes_per_second?: number;
}

/** A load that has begun. */
export interface DemoLoadAnswer {
  node: string;
  gpus: LoadedGpuJson[];
  /** Seconds since the epoch. */
  ends_at: number;
}
