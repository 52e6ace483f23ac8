"""Builds and runs the rule engine of `up` and `server`: its thread, its Alertmanagers and its files.

Rules have threads and an evaluator of their own, so that neither clients' queries nor their limits delay an
evaluation, and a slow group delays no other. `load_rules` reads everything before anything is used: one mistake
leaves the running rules as they are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from gpuscope.base.clock import SystemClock
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_path
from gpuscope.cli.wiring.login import address_text
from gpuscope.history.engines.http_engine import HttpEngine
from gpuscope.history.promql import Engine
from gpuscope.history.scrape import Sink
from gpuscope.history.scrape.config import ScrapeConfig
from gpuscope.history.store import Store
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.notify.alertmanager_config import AlertingSection, read_alerting
from gpuscope.judge.notify.alertmanager_sender import (
    AlertmanagerDiscovery,
    AlertmanagerQueue,
    AlertmanagerSender,
)
from gpuscope.judge.rules.alert_state import AlertFanOut, AlertSink
from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.evaluated_rules import AlertContext
from gpuscope.judge.rules.rule_file import (
    RuleFiles,
    load_rule_set,
    refuse_recording_rules,
    with_default_groups,
    with_rollups,
)
from gpuscope.judge.rules.rule_group import EvaluationTotals, RuleEnvironment, RuleGroup
from gpuscope.judge.rules.rule_io import (
    EngineQueries,
    EvaluatorQueries,
    NoSamples,
    RuleQueries,
    SampleWriter,
    StoreWriter,
)
from gpuscope.judge.rules.rule_runner import RuleRunner, rule_families
from gpuscope.judge.rules.rule_spec import SECOND_NS, GroupSpec
from gpuscope.judge.rules.saved_alerts import RuleStateFile
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.serve.api.rule_routes import RulesView
from gpuscope.serve.api.status import ReloadStatus

log = logging.getLogger("gpuscope")

STATE_FILE = "rule_state.json"
ENGINE_QUERY_OFFSET_NS = 30 * SECOND_NS
"""Over another engine: samples that are sent to it may arrive late."""
ENGINE_TIMEOUT_SECONDS = 30.0
RARE_INTERVAL_NS = 1800 * SECOND_NS
RETRY_SECONDS = 10.0
"""After a failure that no rule can cause."""
STOP_SECONDS = 5.0
"""An Alertmanager or an engine that hangs must not keep the process from stopping."""
EVALUATION_THREADS = 4
"""So many groups are evaluated at a time. Prometheus has no bound; here threads share one interpreter, so that
more of them would only make every group later."""


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """Rule files and the alerting section, read and checked."""

    groups: tuple[GroupSpec, ...]
    alerting: AlertingSection
    external_labels: dict[str, str]
    default_query_offset_ns: int = 0


def load_rules(
    settings: Settings, config: ScrapeConfig, *, with_shipped: bool = False, with_rollup: bool = True
) -> LoadedRules:
    """Raises UsageError with every mistake; nothing is changed. `with_shipped` adds gpuscope's own alerts,
    `with_rollup` the roll-ups, which need a store to write to; --rollup-retention 0 leaves them out."""
    interval = config.evaluation_interval if settings.config else settings.evaluation_interval
    files = [
        *RuleFiles(config.rule_files).find(),
        *RuleFiles(tuple(str(home_path(pattern, "rules")) for pattern in settings.rules), "--rules").find(),
    ]
    alerting = read_alerting(config.alerting, settings.config, config.folder)
    for warning in alerting.warnings:
        log.warning("%s", warning)
    groups = load_rule_set(dict.fromkeys(files), round(interval * SECOND_NS), load_templates(settings))
    if with_shipped:
        groups = with_default_groups(groups, round(interval * SECOND_NS), load_templates(settings))
    if with_rollup and settings.rollup_retention:
        groups = with_rollups(groups, round(interval * SECOND_NS), load_templates(settings))
    return LoadedRules(
        groups, alerting, dict(config.external_labels), round(config.rule_query_offset * SECOND_NS)
    )


def external_url(settings: Settings, listen: tuple[str, int]) -> str:
    return settings.external_url or f"http://{address_text(listen)}"


@dataclass(frozen=True, slots=True)
class RuleIo:
    """What the rules of one runner read and write; `stopping` ends their evaluation."""

    queries: RuleQueries
    samples: SampleWriter
    stopping: threading.Event


def is_rare(group: GroupSpec) -> bool:
    """Only recording rules, and seldom: they read hours of samples and must not delay the alerts."""
    return group.interval_ns >= RARE_INTERVAL_NS and not any(rule.is_alert for rule in group.rules)


class RunnerThreads:
    """Run the groups of one runner when they are due."""

    def __init__(self, runner: RuleRunner, io: RuleIo, name: str, count: int) -> None:
        self.runner = runner
        self._io = io
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._io.stopping.set()
        self.runner.wake.set()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        self.runner.stop()

    def _run(self) -> None:
        try:
            while not self._io.stopping.is_set():
                self.runner.wake.wait(self._run_due())
                if not self._io.stopping.is_set():  # else the other threads must still see it
                    self.runner.wake.clear()
        finally:
            if isinstance(self._io.queries, EngineQueries):
                self._io.queries.close()

    def _run_due(self) -> float:
        try:
            return self.runner.run_due()
        except Exception:  # a defect of ours; without this thread there would be no alerts at all
            log.exception("rule evaluation failed; it is tried again in %g s", RETRY_SECONDS)
            return RETRY_SECONDS


class RuleEvaluation:
    """The rule engine with its threads. `sinks` take alerts besides the Alertmanagers of the configuration;
    `rare` is for groups that `is_rare`, which then have a thread of their own."""

    def __init__(
        self,
        settings: Settings,
        listen: tuple[str, int],
        loaded: LoadedRules,
        io: RuleIo,
        state_file: Path,
        sinks: Sequence[AlertSink] = (),
        rare: RuleIo | None = None,
    ) -> None:
        self._settings = settings
        self._external_url = external_url(settings, listen)
        self._io = io
        self._rare = rare
        self._totals = EvaluationTotals()
        self._sender_threads: list[threading.Thread] = []
        self._sender = AlertmanagerSender(settings, self._start_queue)
        self._discovery_workers = ThreadPoolExecutor(1, "gpuscope-alertmanagers")
        self._discovery = AlertmanagerDiscovery(self._sender, self._discovery_workers, settings)
        self._discovery_thread: threading.Thread | None = None
        self._sink = AlertFanOut([self._sender, *sinks])
        self._discovery.use(loaded.alerting, loaded.external_labels)
        often, seldom = self._divide(loaded.groups)
        runner = RuleRunner(often, self._environment(loaded, io), RuleStateFile(state_file))
        self._threads = [RunnerThreads(runner, io, "gpuscope-rules", EVALUATION_THREADS)]
        if rare is not None:
            runner = RuleRunner(seldom, self._environment(loaded, rare))
            self._threads.append(RunnerThreads(runner, rare, "gpuscope-rollups", 1))
        self.view = RulesView(self._groups, self._sender.urls)

    def _divide(self, groups: Sequence[GroupSpec]) -> tuple[list[GroupSpec], list[GroupSpec]]:
        seldom = [group for group in groups if self._rare is not None and is_rare(group)]
        return [group for group in groups if group not in seldom], seldom

    def _groups(self) -> Sequence[RuleGroup]:
        found = [group for thread in self._threads for group in thread.runner.groups]
        return sorted(found, key=lambda group: (group.spec.file, group.spec.name))

    def _environment(self, loaded: LoadedRules, io: RuleIo) -> RuleEnvironment:
        context = AlertContext(
            load_templates(self._settings),
            loaded.external_labels,
            self._external_url,
            max_alerts=self._settings.rules_max_alerts,
            max_template_queries=self._settings.rules_max_template_queries,
        )
        return RuleEnvironment(
            queries=io.queries,
            samples=io.samples,
            alerts=self._sink,
            context=context,
            clock=SystemClock(),
            default_query_offset_ns=loaded.default_query_offset_ns,
            stopping=io.stopping,
            totals=self._totals,
        )

    def _start_queue(self, queue: AlertmanagerQueue) -> None:
        thread = threading.Thread(target=queue.run, name="gpuscope-alertmanager", daemon=True)
        self._sender_threads = [*filter(threading.Thread.is_alive, self._sender_threads), thread]
        thread.start()

    def _discover_alertmanagers(self) -> None:
        if self._discovery_thread is None and self._discovery.is_needed:
            self._discovery_thread = threading.Thread(
                target=self._discovery.run, name="gpuscope-alertmanagers", daemon=True
            )
            self._discovery_thread.start()

    def reload(self, loaded: LoadedRules) -> None:
        """Use these rules and Alertmanagers from the next evaluation on."""
        self._discovery.use(loaded.alerting, loaded.external_labels)
        self._discover_alertmanagers()
        often, seldom = self._divide(loaded.groups)
        self._threads[0].runner.replace_groups(often, self._environment(loaded, self._io))
        if self._rare is not None:
            self._threads[1].runner.replace_groups(seldom, self._environment(loaded, self._rare))

    def families(self) -> Iterator[MetricFamily]:
        yield from rule_families(self._groups(), self._totals)
        yield from self._sender.families()

    def __enter__(self) -> RuleEvaluation:
        self._discover_alertmanagers()
        for runner in self._threads:
            runner.start()
        return self

    def __exit__(self, *error: object) -> None:
        for runner in self._threads:
            runner.stop()
        self._discovery.stop()
        if self._discovery_thread is not None:
            self._discovery_thread.join(timeout=STOP_SECONDS)
        self._discovery_workers.shutdown(wait=False)
        self._sender.stop()
        for thread in self._sender_threads:
            thread.join(timeout=STOP_SECONDS)


def embedded_rules(
    settings: Settings,
    listen: tuple[str, int],
    loaded: LoadedRules,
    store: Store,
    *,
    remote_write: Sink | None = None,
    sinks: Sequence[AlertSink] = (),
) -> RuleEvaluation:
    """Over the store of this process."""

    def new_io() -> RuleIo:
        evaluator, stopping = Engine(store, lookback_ms=int(settings.query_lookback * 1000)), threading.Event()
        queries = EvaluatorQueries(evaluator, stopping, [check.promql for check in CHECKS.values()])
        return RuleIo(queries, StoreWriter(store, remote_write), stopping)

    return RuleEvaluation(settings, listen, loaded, new_io(), store.folder / STATE_FILE, sinks, rare=new_io())


def engine_rules(
    settings: Settings,
    listen: tuple[str, int],
    new_engine: Callable[[], HttpEngine],
    config: ScrapeConfig,
    sinks: Sequence[AlertSink] = (),
) -> RuleEvaluation:
    """Over an engine behind HTTP: alerting rules only. Each thread calls `new_engine`."""
    loaded = load_engine_rules(settings, config)
    folder = home_path(settings.data, "data")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    io = RuleIo(EngineQueries(new_engine, ENGINE_TIMEOUT_SECONDS), NoSamples(), threading.Event())
    name = "".join(char if char.isalnum() else "_" for char in new_engine().name)[:100]
    return RuleEvaluation(settings, listen, loaded, io, folder / f"rule_state_{name}.json", sinks)


def reload_rules(load: Callable[[], LoadedRules], rules: RuleEvaluation, status: ReloadStatus) -> None:
    """Rules that cannot be loaded leave the previous ones as they are."""
    try:
        loaded = load()
    except UsageError as error:
        status.failed(str(error))
        log.error("the rules were not reloaded, the previous ones stay: %s", error)
        return
    rules.reload(loaded)
    status.succeeded()
    log.info("the rules were reloaded")


def load_engine_rules(settings: Settings, config: ScrapeConfig) -> LoadedRules:
    """Of `config` only rule files, Alertmanagers and `global` count: the engine does the rest."""
    loaded = load_rules(settings, config, with_rollup=False)
    refuse_recording_rules(loaded.groups, settings.store)
    return replace(loaded, default_query_offset_ns=loaded.default_query_offset_ns or ENGINE_QUERY_OFFSET_NS)
