"""From processes on GPUs to the idle policy: the agent's accounts and metrics, the store, and the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuscope.agent.families.native.owner_metrics import OwnerMetrics
from gpuscope.agent.families.native.process_metrics import ProcessMetrics
from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.history.scrape.target_appender import Report
from gpuscope.model.readings import ABSENT, Counters, Device, Owner, Ownership, Pid, Process, Snapshot, Uuid
from gpuscope.model.series import Labels
from tests.owners.test_gpu_work import COPYING, IDLE_GPU, gpu, process
from tests.wiring.test_scheduled_threads import NODE, PolicyServer, labels_of, read_slurm

Minute = tuple[Device, Process]
CYCLE_SECONDS = 30
STEP_MINUTES = 3
MINUTES = 150


def work(device: Device = IDLE_GPU, **values: object) -> Callable[[int], Minute]:
    running = process(**values)  # type: ignore[arg-type]
    return lambda minute: (device, running)


def after(minutes: int, then: Callable[[int], Minute]) -> Callable[[int], Minute]:
    return lambda minute: (then if minute >= minutes else work())(minute)


JOBS = {
    "17": work(),  # does nothing: the same pipeline sees idle time, so its silence about others means something
    "101": work(encoder_ratio=0.9),
    "102": work(gpu(decoder_utilization_ratio=0.9)),  # only the GPU reports it
    "103": work(gpu(**COPYING)),
    "104": work(sm=0.03),  # an inference server
    "105": work(command="Xorg", kind="G"),
    "106": work(command="nvidia-cuda-mps-server"),
    "107": work(sm=ABSENT),
    "108": after(50, work(sm=0.9)),  # a job that starts
}
"""What the holder of each GPU does, by job."""


class SimulatedAgent:
    """One GPU for each job."""

    def __init__(self) -> None:
        self._accounts, self._second = OwnerAccounts(), 0
        self._enricher = ProcessEnricher()
        self._metrics = OwnerMetrics(), ProcessMetrics()

    def samples_until(self, minute: int) -> dict[Labels, float]:
        while self._second < 60 * minute:
            self._second += CYCLE_SECONDS
            devices, listed = self._read(self._second // 60)
            second = float(self._second)
            processes = self._enricher.advance(listed, devices, simulated=True, now=second, monotonic=second)
            counters = {device.uuid: Counters() for device in devices}
            uses, left = self._accounts.advance(processes, devices, ABSENT, counters, second)
        ownership = Ownership(uses=uses, unattributed=left, times=self._accounts.times)
        snapshot = Snapshot(
            node="n1", taken_at=0.0, devices=tuple(devices), processes=processes, ownership=ownership
        )
        info = {"user": "ann", "account": "nlp", "partition": "gpu"}
        samples = {labels_of("gpuscope_job_info", NODE, slurm_job=job, **info): 1.0 for job in JOBS}
        for device in devices:
            gpu_labels = {"gpu": str(device.index), "uuid": device.uuid}
            samples[labels_of("gpuscope_gpu_info", NODE, node="n1", **gpu_labels)] = 1.0
        for metrics in self._metrics:
            for family in metrics.to_families(snapshot):
                for labels, value in family.samples:
                    samples[labels_of(family.name, NODE, **dict(labels.pairs))] = float(value)
        return samples

    def _read(self, minute: int) -> tuple[list[Device], list[Process]]:
        devices, processes = [], []
        for index, (job, doing) in enumerate(JOBS.items()):
            device, running = doing(minute)
            uuid, owner = Uuid(f"GPU-{job}"), Owner(user="ann", job=job, job_account="nlp")
            devices.append(replace(device, uuid=uuid, index=index))
            processes.append(replace(running, pid=Pid(1000 + index), gpu_uuid=uuid, owner=owner))
        return devices, processes


def test_only_who_does_nothing_is_warned_and_ended(tmp_path: Path) -> None:
    server = PolicyServer(tmp_path, f"command: [touch, '{tmp_path}/ended-{{job}}']\ndry_run: false\n")
    agent = SimulatedAgent()
    for minute in range(STEP_MINUTES, MINUTES, STEP_MINUTES):
        server.clock.seconds += 60.0 * STEP_MINUTES
        samples = {**read_slurm(["n1"]), **agent.samples_until(minute)}
        ids = server.scrape.series_ids([tuple(sorted(dict(labels).items())) for labels in samples])
        server.scrape.submit(server.clock.now_ms(), ids, list(samples.values()), Report(True, 0.1)).result()
        server.thread.run_once()
    server.store.close()
    assert server.kinds() == ["warned", "warned", "run", "done"]
    assert {dict(alert.labels).get("slurm_job") for alert in server.channel.alerts} == {"17"}
    assert [path.name for path in tmp_path.glob("ended-*")] == ["ended-17"]
