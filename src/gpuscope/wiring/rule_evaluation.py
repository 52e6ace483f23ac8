"""Builds and runs the rule engine of `up` and `server`: its thread, its Alertmanagers and its files.

Rules have a thread and an evaluator of their own, so that neither clients' queries nor their limits delay an
evaluation. `load_rules` reads everything before anything is used: one mistake leaves the running rules as they
are.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope.clock import SystemClock
from gpuscope.engines.http_engine import HttpEngine
from gpuscope.errors import UsageError
from gpuscope.metrics.sample import MetricFamily
from gpuscope.notify.alertmanagers.alertmanager_config import AlertingSection, read_alerting
from gpuscope.notify.alertmanagers.alertmanager_queue import AlertmanagerQueue
from gpuscope.notify.alertmanagers.alertmanager_sender import AlertmanagerSender
from gpuscope.promql import Engine
from gpuscope.rules.alert import AlertSink
from gpuscope.rules.alert_fan_out import AlertFanOut
from gpuscope.rules.alerting_rule import AlertContext
from gpuscope.rules.go_templates import load_templates
from gpuscope.rules.interfaces import NoSamples, RuleQueries, SampleWriter
from gpuscope.rules.query_adapters import EngineQueries, EvaluatorQueries
from gpuscope.rules.rule_group import EvaluationTotals, RuleEnvironment
from gpuscope.rules.rule_metrics import rule_families
from gpuscope.rules.rule_runner import RuleRunner
from gpuscope.rules.rule_set import RuleFiles, load_rule_set, refuse_recording_rules
from gpuscope.rules.rule_spec import SECOND_NS, GroupSpec
from gpuscope.rules.state_file import RuleStateFile
from gpuscope.rules.store_writer import StoreWriter
from gpuscope.scrape.config import ScrapeConfig
from gpuscope.scrape.sink import Sink
from gpuscope.server.api.rules_json import RulesView
from gpuscope.settings import Settings, home_path
from gpuscope.store import Store

log = logging.getLogger("gpuscope")

STATE_FILE = "rule_state.json"
ENGINE_QUERY_OFFSET_NS = 30 * SECOND_NS
"""Over another engine: samples that are sent to it may arrive late."""
ENGINE_TIMEOUT_SECONDS = 30.0
STOP_SECONDS = 5.0
"""An Alertmanager that hangs must not keep the process from stopping."""


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """Rule files and the alerting section, read and checked."""

    groups: tuple[GroupSpec, ...]
    alerting: AlertingSection
    external_labels: dict[str, str]
    default_query_offset_ns: int = 0


def load_rules(settings: Settings, config: ScrapeConfig) -> LoadedRules:
    """Raises UsageError with every mistake; nothing is changed."""
    interval = config.evaluation_interval if settings.config else settings.evaluation_interval
    files = [
        *RuleFiles(config.rule_files).find(),
        *RuleFiles(tuple(str(home_path(one, "rules")) for one in settings.rules), "--rules").find(),
    ]
    alerting = read_alerting(config.alerting, settings.config, config.folder)
    for warning in alerting.warnings:
        log.warning("%s", warning)
    groups = load_rule_set(dict.fromkeys(files), round(interval * SECOND_NS), load_templates())
    return LoadedRules(
        groups, alerting, dict(config.external_labels), round(config.rule_query_offset * SECOND_NS)
    )


def external_url(settings: Settings, listen: tuple[str, int]) -> str:
    if settings.external_url:
        if not settings.external_url.startswith(("http://", "https://")):
            raise UsageError(f"--external-url {settings.external_url}: not an http:// or https:// URL")
        return settings.external_url.rstrip("/")
    return f"http://{socket.gethostname()}:{listen[1]}"


class RuleEvaluation:
    """The rule engine with its thread. `sinks` take alerts besides the Alertmanagers of the configuration."""

    def __init__(
        self,
        settings: Settings,
        listen: tuple[str, int],
        loaded: LoadedRules,
        queries: RuleQueries,
        samples: SampleWriter,
        state_file: Path,
        sinks: Sequence[AlertSink] = (),
    ) -> None:
        self._settings = settings
        self._external_url = external_url(settings, listen)
        self._queries = queries
        self._samples = samples
        self._totals = EvaluationTotals()
        self._sender_threads: list[threading.Thread] = []
        self._sender = AlertmanagerSender(settings.alertmanager_queue_capacity, self._start_queue)
        self._sink = AlertFanOut([self._sender, *sinks])
        self._sender.use(loaded.alerting, loaded.external_labels)
        self._runner = RuleRunner(loaded.groups, self._environment(loaded), RuleStateFile(state_file))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope-rules", daemon=True)
        self.view = RulesView(lambda: self._runner.groups, self._sender.urls)

    def _environment(self, loaded: LoadedRules) -> RuleEnvironment:
        context = AlertContext(
            load_templates(),
            loaded.external_labels,
            self._external_url,
            max_alerts=self._settings.rules_max_alerts,
        )
        return RuleEnvironment(
            queries=self._queries,
            samples=self._samples,
            alerts=self._sink,
            context=context,
            clock=SystemClock(),
            default_query_offset_ns=loaded.default_query_offset_ns,
            totals=self._totals,
        )

    def _start_queue(self, queue: AlertmanagerQueue) -> None:
        thread = threading.Thread(target=queue.run, name="gpuscope-alertmanager", daemon=True)
        self._sender_threads = [one for one in self._sender_threads if one.is_alive()] + [thread]
        thread.start()

    def reload(self, loaded: LoadedRules) -> None:
        """Use these rules and Alertmanagers from the next evaluation on."""
        self._sender.use(loaded.alerting, loaded.external_labels)
        self._runner.replace_groups(loaded.groups, self._environment(loaded))

    def families(self) -> Iterator[MetricFamily]:
        yield from rule_families(self._runner.groups, self._totals)
        yield from self._sender.families()

    def __enter__(self) -> RuleEvaluation:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._runner.wake.set()
        self._thread.join()
        self._sender.stop()
        for thread in self._sender_threads:
            thread.join(timeout=STOP_SECONDS)

    def _run(self) -> None:
        runner = self._runner
        try:
            while not self._stopping.is_set():
                seconds = runner.run_due()
                runner.wake.wait(seconds)
                runner.wake.clear()
        except Exception:
            log.exception("rule evaluation stopped")
        finally:
            runner.stop()
            if isinstance(self._queries, EngineQueries):
                self._queries.close()


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
    evaluator = Engine(store, lookback_ms=int(settings.query_lookback * 1000))
    return RuleEvaluation(
        settings,
        listen,
        loaded,
        EvaluatorQueries(evaluator),
        StoreWriter(store, remote_write),
        store.folder / STATE_FILE,
        sinks,
    )


def engine_rules(
    settings: Settings,
    listen: tuple[str, int],
    engine: HttpEngine,
    sinks: Sequence[AlertSink] = (),
) -> RuleEvaluation:
    """Over an engine behind HTTP: alerting rules only. `engine` must not be used elsewhere."""
    loaded = load_engine_rules(settings)
    folder = home_path(settings.data, "data")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    queries = EngineQueries(engine, asyncio.new_event_loop(), ENGINE_TIMEOUT_SECONDS)
    name = "".join(char if char.isalnum() else "_" for char in engine.name)[:100]
    return RuleEvaluation(
        settings, listen, loaded, queries, NoSamples(), folder / f"rule_state_{name}.json", sinks
    )


def load_engine_rules(settings: Settings) -> LoadedRules:
    loaded = load_rules(settings, ScrapeConfig())
    refuse_recording_rules(loaded.groups, settings.store)
    return LoadedRules(loaded.groups, loaded.alerting, {}, ENGINE_QUERY_OFFSET_NS)
