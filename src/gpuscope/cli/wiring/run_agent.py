"""Builds and runs a collector with its threads and listeners: for `agent`, `textfile` and one-shot commands."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpuscope.agent.collect.collector import Collector, PlannedSource
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.expected import expected_gpus
from gpuscope.agent.collect.source_worker import SourceWorker, choose_sources
from gpuscope.agent.families.stand_in import ListenerPlan
from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import NoGpuReadable
from gpuscope.base.limits import Limits
from gpuscope.base.settings import Settings
from gpuscope.base.source_plan import families_without_gpus
from gpuscope.cli.wiring.heap import keep_one_heap
from gpuscope.cli.wiring.listeners import build_server, fit_limits
from gpuscope.cli.wiring.owners import build_owner_join
from gpuscope.cli.wiring.service_manager import local_url, tell_systemd_ready
from gpuscope.model.exposition.text import TextfileWriter
from gpuscope.model.readings import Snapshot
from gpuscope.model.source import load_source
from gpuscope.serve.exporter import Exporter, HttpLimitBuilder
from gpuscope.serve.http.messages import with_guard
from gpuscope.serve.http.server import Server
from gpuscope.serve.web_config import WebConfig, load_web_config

MAX_SECONDS_FOR_ONE_SHOT = 5.0  # enough for a slow driver or a slow command

log = logging.getLogger("gpuscope")


def build_collector(
    settings: Settings, families: Collection[str], also: Collection[str] = (), clock: Clock | None = None
) -> Collector:
    if settings.source == "demo":
        from gpuscope.cli.wiring.demo import build_demo

        return build_demo(settings).collectors[0]
    clock = clock or SystemClock()
    plan = []
    for choice in choose_sources(settings, families, also):
        spec = load_source(choice.name)
        spec.check(settings)
        plan.append(PlannedSource(SourceWorker(spec, settings, clock), choice.wanted, choice.why))
    owners, owner_workers = build_owner_join(settings, clock)
    state_dir = settings.state_dir or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Collector(
        plan,
        node=settings.node_name(),
        interval=settings.interval,
        clock=clock,
        ledger=ErrorLedger(Path(state_dir) / "xids.json" if state_dir else None),
        expected_gpus=expected_gpus(settings),
        owners=owners,
        owner_workers=owner_workers,
    )


class CollectorThreads:
    """The threads of a collector and its workers; stops them in the right order, even if one hangs."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self._workers = [
            threading.Thread(target=worker.run, name=worker.name, daemon=True) for worker in collector.workers
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
    needs_gpus = not families_without_gpus().issuperset(plan.families)
    return Exporter(
        plan.builders,
        openmetrics=plan.openmetrics,
        title=plan.title,
        needs_gpus=needs_gpus,
        on_demand=plan.on_demand,
    )


def read_once(running: CollectorThreads, reads: int = 2, seconds_apart: float = 1.0) -> Snapshot:
    """A snapshot for one-shot commands; reads twice, because some numbers need two readings."""
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
        raise NoGpuReadable(f"no GPU readable. {reasons}. Run `gpuscope doctor` for details")


def write_textfile(
    running: CollectorThreads,
    exporter: Exporter,
    writer: TextfileWriter,
    *,
    every: float,
    stop: threading.Event,
) -> None:
    """Rewrites the file every `every` seconds until `stop` is set, then removes it."""
    keep_one_heap()
    running.start()
    episode = EpisodeLog(log, f"textfile {writer.target}", level=logging.ERROR, recovered="is written again")
    is_told = False
    try:
        # A file without GPUs would look as if they were lost; slow numbers come with the second reading.
        while not stop.wait(0.05) and running.collector.ticks < 3:
            pass
        while not stop.is_set():
            try:
                writer.write(exporter.exposition())
            except OSError as error:
                episode.failed(f"{error.strerror}; the old file stays")
            else:
                episode.succeeded()
            if not is_told:
                tell_systemd_ready()
                is_told = True
            stop.wait(every)
    finally:
        running.stop()
        writer.remove()


def serve_agent(running: CollectorThreads, plans: Sequence[ListenerPlan], settings: Settings) -> None:
    """Runs until SIGINT or SIGTERM."""
    keep_one_heap()
    asyncio.run(_serve_agent(running, plans, fit_limits(settings, len(plans))))


async def _serve_agent(running: CollectorThreads, plans: Sequence[ListenerPlan], limits: Limits) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    servers, urls = [], []
    try:
        for plan in plans:
            exporter = build_exporter(_with_limits(plan, limits))
            running.collector.subscribe(exporter.publish)
            server, port = await _listen(plan, exporter, limits)
            servers.append(server)
            urls.append(local_url(server.scheme, plan.host, port))
        running.start()
        tell_systemd_ready(*urls)
        await stop.wait()
    finally:
        for server in servers:
            await server.stop()
        await loop.run_in_executor(None, running.stop)


def _with_limits(plan: ListenerPlan, limits: Limits) -> ListenerPlan:
    """Only for the native family: a stand-in serves what the original serves, and nothing else."""
    if "native" not in plan.families:
        return plan
    return replace(plan, builders=(*plan.builders, HttpLimitBuilder(limits)))


async def _listen(plan: ListenerPlan, exporter: Exporter, limits: Limits) -> tuple[Server, int]:
    web = load_web_config(Path(plan.web_config_file), limits) if plan.web_config_file else WebConfig()
    handler = exporter.handler(plan.metrics_path, plan.probes)
    server = build_server(with_guard(handler, web.guard) if web.guard else handler, web, limits)
    port = await server.start(plan.host, plan.port)
    scheme = server.scheme
    log.info("%s on %s://%s:%d%s", plan.title, scheme, plan.host or "localhost", port, plan.metrics_path)
    return server, port
