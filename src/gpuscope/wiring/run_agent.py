"""Builds and runs what collects: which sources, in what order of trust, which listeners, and how they stop."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpuscope.clock import Clock, SystemClock
from gpuscope.collect.collector import Collector, Planned, Wanted
from gpuscope.collect.expected import expected_gpus
from gpuscope.collect.runner import Runner
from gpuscope.collect.xid_ledger import XidLedger
from gpuscope.errors import NoGpuReadable
from gpuscope.exposition.textfile_writer import TextfileWriter
from gpuscope.health.xids import explain_xid
from gpuscope.limits import Limits
from gpuscope.readings import ABSENT, Device, Snapshot
from gpuscope.server.exporter import Exporter
from gpuscope.server.http.messages import with_guard
from gpuscope.server.http.server import Server
from gpuscope.server.limit_metrics import HttpLimitBuilder
from gpuscope.server.listener import ListenerPlan
from gpuscope.server.web_config import WebConfig, load_web_config
from gpuscope.settings import Settings
from gpuscope.sources import load_source
from gpuscope.wiring.heap import keep_one_heap
from gpuscope.wiring.listeners import build_server, fit_limits
from gpuscope.wiring.owners import build_ownership

FIRST_PROFILING_SECONDS = 5.0
MAX_SECONDS_FOR_ONE_SHOT = 5.0  # a slow driver or nvidia-smi is waited for; one that hangs is not

log = logging.getLogger("gpuscope")


def _always(runners: Sequence[Runner]) -> bool:
    return True


def _nvml_down(runners: Sequence[Runner]) -> bool:
    return any(runner.spec.name == "nvml" and runner.is_down() for runner in runners)


def _profiling_missing(runners: Sequence[Runner]) -> bool:
    """Whether some GPU that answers has no profiling numbers from the driver: DCGM may know them."""
    for runner in runners:
        reading = runner.fresh()
        if runner.spec.name == "nvml" and reading is not ABSENT:
            # Profiling needs two readings some time apart; from Hopper on they are worth waiting for.
            waiting = runner.answering_for() < FIRST_PROFILING_SECONDS
            return any(
                device.sm_active_ratio is ABSENT and not (waiting and _profiles_itself(device))
                for device in reading.devices
                if not device.lost
            )
    return _nvml_down(runners)


def _profiles_itself(device: Device) -> bool:
    capability = device.compute_capability
    return capability is not ABSENT and capability.partition(".")[0] not in ("", *"5678")


def plan_sources(
    settings: Settings, families: Collection[str], also: Collection[str] = ()
) -> list[tuple[str, Wanted, str]]:
    """Source names in order of trust, each with when it is wanted, and why for the log; `also` names some that
    always are."""
    if set(families) == {"host"}:  # a node without GPUs: nothing to look for
        return [("host", _always, "")]
    plan: list[tuple[str, Wanted, str]] = []
    if settings.source == "auto":
        plan.append(("nvml", _always, ""))
        if shutil.which(settings.dcgmi_command.split()[0]):
            plan.append(("dcgm", _profiling_missing, "the driver gives no profiling numbers for some GPU"))
        wanted = _always if "nvidia-smi" in also else _nvml_down
        plan.append(("nvidia-smi", wanted, "NVML does not answer"))
    else:
        plan.append((settings.source, _always, ""))
    plan.append(("kernel-log", _always, ""))
    if "host" in families:
        plan.append(("host", _always, ""))
    return plan


def build_collector(
    settings: Settings, families: Collection[str], also: Collection[str] = (), clock: Clock | None = None
) -> Collector:
    if settings.source == "demo":
        from gpuscope.wiring.demo import build_demo

        return build_demo(settings).collectors[0]
    clock = clock or SystemClock()
    plan = []
    for name, wanted, why in plan_sources(settings, families, also):
        spec = load_source(name)
        spec.check(settings)
        plan.append(Planned(Runner(spec, settings, clock), wanted, why))
    ownership, owner_workers = build_ownership(settings, clock)
    plan += owner_workers
    state_dir = settings.state_dir or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Collector(
        plan,
        node=settings.node_name(),
        interval=settings.interval,
        clock=clock,
        ledger=XidLedger(Path(state_dir) / "xids.json" if state_dir else None),
        expected_gpus=expected_gpus(settings),
        ownership=ownership,
        explain_xid=lambda code: explain_xid(code).meaning,
    )


class Running:
    """A collector with its threads; stops them in the right order, even if one of them hangs."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self._workers = [
            threading.Thread(target=planned.runner.run, name=planned.runner.spec.name, daemon=True)
            for planned in collector.plan
        ]
        self._cycle = threading.Thread(target=collector.run, name="cycle", daemon=True)

    def start_workers(self) -> None:
        for worker in self._workers:
            worker.start()

    def start(self) -> None:
        self.start_workers()
        self._cycle.start()

    def stop(self) -> None:
        self.collector.stop()
        if self._cycle.is_alive():
            self._cycle.join(timeout=5.0)
        for worker in self._workers:
            if worker.is_alive():
                worker.join(timeout=1.0)  # a stuck driver call must not keep the agent from stopping


def build_exporter(plan: ListenerPlan) -> Exporter:
    needs_gpus = set(plan.families) != {"host"}
    return Exporter(plan.builders, openmetrics=plan.openmetrics, title=plan.title, needs_gpus=needs_gpus)


def read_once(running: Running, reads: int = 2, seconds_apart: float = 1.0) -> Snapshot:
    """A snapshot for one-shot commands; reads twice where a number needs two readings."""
    running.start_workers()
    try:
        running.collector.tick()
        for _ in range(reads - 1):
            threading.Event().wait(seconds_apart)
            running.collector.tick()
        running.collector.finish_reading(MAX_SECONDS_FOR_ONE_SHOT)
    finally:
        running.stop()
    return running.collector.snapshot


def require_gpu(snapshot: Snapshot) -> None:
    if not any(not device.lost for device in snapshot.devices):
        reasons = "; ".join(f"{status.name}: {status.why}" for status in snapshot.sources if not status.up)
        raise NoGpuReadable(f"no GPU readable. {reasons}. `gpuscope doctor` says more")


def write_textfile(
    running: Running, exporter: Exporter, writer: TextfileWriter, *, every: float, stop: threading.Event
) -> None:
    """Rewrites the file at a fixed beat until `stop` is set, then takes it away."""
    keep_one_heap()
    running.start()
    try:
        # A file without GPUs would look like GPUs lost, and the slow numbers come with the second reading.
        while not stop.wait(0.05) and running.collector.ticks < 3:
            pass
        while not stop.is_set():
            try:
                writer.write(exporter.exposition())
            except OSError as error:
                log.error("textfile: %s; the old file stays", error)
            stop.wait(every)
    finally:
        running.stop()
        writer.remove()


def serve_agent(running: Running, plans: Sequence[ListenerPlan], settings: Settings) -> None:
    """Runs until SIGINT or SIGTERM."""
    keep_one_heap()
    asyncio.run(_serve_agent(running, plans, fit_limits(settings, len(plans))))


async def _serve_agent(running: Running, plans: Sequence[ListenerPlan], limits: Limits) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    servers = []
    try:
        for plan in plans:
            exporter = build_exporter(_with_limits(plan, limits))
            running.collector.subscribe(exporter.publish)
            servers.append(await _listen(plan, exporter, limits))
        running.start()
        await stop.wait()
    finally:
        for server in servers:
            await server.stop()
        await loop.run_in_executor(None, running.stop)


def _with_limits(plan: ListenerPlan, limits: Limits) -> ListenerPlan:
    """A stand-in shows what the exporter it stands in for shows, and nothing else."""
    if "native" not in plan.families:
        return plan
    return replace(plan, builders=(*plan.builders, HttpLimitBuilder(limits)))


async def _listen(plan: ListenerPlan, exporter: Exporter, limits: Limits) -> Server:
    web = load_web_config(Path(plan.web_config_file), limits) if plan.web_config_file else WebConfig()
    handler = exporter.handler(plan.metrics_path, plan.probes)
    server = build_server(with_guard(handler, web.guard) if web.guard else handler, web, limits)
    port = await server.start(plan.host, plan.port)
    scheme = server.scheme
    log.info("%s on %s://%s:%d%s", plan.title, scheme, plan.host or "localhost", port, plan.metrics_path)
    return server
