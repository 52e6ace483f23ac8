"""Measures usage reports, receipts and roll-ups over the embedded store, in CPU seconds of this process.

A year of hourly and daily roll-ups of 100 GPUs, a week of 1,000 GPUs, each with samples of the last two hours;
a receipt of a job on 8 GPUs of 64 with six hours of samples, and of a job of a week on 8 of 1,000, whose
findings a ledger has, as that of a server; and one evaluation of the roll-ups of 1,000 nodes of 8 GPUs: one
counter by owner (three owners on each GPU) and one by GPU are evaluated, and counted five and eight times.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.rules_bench import NoAlerts
from gpuscope.base.clock import SystemClock
from gpuscope.base.settings import Settings
from gpuscope.base.yaml_file import parse_first_document
from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.promql.frame import Floats
from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.judge.reports.receipt.job_question import parse_job
from gpuscope.judge.reports.receipt.receipt_reader import read_receipt
from gpuscope.judge.reports.usage.usage import parse_grouping
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.evaluated_rules import AlertContext
from gpuscope.judge.rules.rule_file import read_groups
from gpuscope.judge.rules.rule_group import RuleEnvironment, RuleGroup
from gpuscope.judge.rules.rule_io import EvaluatorQueries, StoreWriter
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.judge.rules.shipped.rule_files import (
    COUNTERS,
    DAILY_EVALUATED,
    HOURLY_EVALUATED,
    HOURLY_GROUP,
    RolledUpCounter,
    rollup_groups,
)
from gpuscope.model.series import Labels
from gpuscope.serve.live.fleet_samples import SortLater
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.reports.findings_over_time import FindingsOverTime

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STEP_MS = 15_000
END_MS = 1_790_000_100_000
USERS = 20
EVALUATED_LATE_MS = 23_456
KINDS: tuple[str, ...] = ("user",)
YEAR_AND_WEEK = (
    ("a year, 100 GPUs", 100, 365, ("user", "node")),
    ("a week, 1,000 GPUs", 1000, 7, ("user", "node")),
)


class SetClock:
    def __init__(self) -> None:
        self.at = END_MS

    def now_ms(self) -> int:
        return self.at

    def monotonic_ms(self) -> int:
        return self.now_ms()


def labels_of(counter: RolledUpCounter, gpu: int, owner: str = "", kind: str = "user") -> dict[str, str]:
    found = {"instance": f"n{gpu // 8}:9400", "job": "gpuscope", "gpu": str(gpu % 8), "uuid": f"GPU-{gpu}"}
    return found | ({"kind": kind, "name": owner} if counter.is_by_owner else {})


def to_labels(metric: str, **more: str) -> Labels:
    return tuple(sorted({"__name__": metric, **more}.items()))


class Writer:
    """Appends rows of values to a store as its clock goes on."""

    def __init__(self, store: Store, clock: SetClock) -> None:
        self._store = store
        self._clock = clock

    def append(self, target: str, at_ms: int, series: list[Labels], values: list[float]) -> None:
        self._clock.at = max(self._clock.at, at_ms)
        number = self._store.target(target)
        ids = self._store.resolve(number, series)
        self._store.append(Tick(number, at_ms, ids, np.array(values)))

    def append_growing(
        self, target: str, times_ms: range, series: list[Labels], first: Floats, rates: Floats
    ) -> None:
        """Values that grow by `rates` in a second."""
        number = self._store.target(target)
        ids = self._store.resolve(number, series)
        for at_ms in times_ms:
            self._clock.at = at_ms
            self._store.append(Tick(number, at_ms, ids, first + rates * ((at_ms - times_ms[0]) / 1000)))

    def append_all(self, target: str, times_ms: list[int], series: list[Labels], value: float) -> None:
        """One value for all series at all times."""
        self._clock.at = max(self._clock.at, times_ms[-1])
        number = self._store.target(target)
        ids = np.tile(self._store.resolve(number, series), len(times_ms))
        stamps = np.repeat(np.array(times_ms, np.int64), len(series))
        self._store.append(Tick(number, times_ms[-1], ids, np.full(len(ids), value), stamps))


@contextmanager
def new_store(first_ms: int) -> Iterator[tuple[Store, Writer]]:
    clock = SetClock()
    clock.at = first_ms
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as folder:
        store = Store(Path(folder), StoreOptions(max_series=2_000_000), clock)
        try:
            yield store, Writer(store, clock)
        finally:
            store.close()


def growth_per_hour(counter: RolledUpCounter) -> float:
    """Every GPU is held and busy all the time."""
    if counter.skips_zero or counter.name in ("gpu_free_seconds", "gpu_stranded_seconds"):
        return 0.0
    return 3600.0 * 300 if "joules" in counter.name else 3600.0


def fill_rollups(writer: Writer, store: Store, gpus: int, hours: int) -> None:
    recorded = [counter for counter in COUNTERS if not counter.skips_zero]
    for day in range(hours // 24):
        times = [END_MS - (hours - 24 * day - hour) * HOUR_MS + EVALUATED_LATE_MS for hour in range(24)]
        for counter in recorded:
            series = [
                to_labels(counter.growth_by_hour, **labels_of(counter, gpu, f"user{(gpu + day) % USERS}"))
                for gpu in range(gpus)
            ]
            writer.append_all(f"rollup {counter.name}", times, series, growth_per_hour(counter))
            if counter.is_by_owner:
                owners = [to_labels(counter.growth_by_day, kind="user", name=f"user{n}") for n in range(USERS)]
                daily = 24 * gpus / USERS * growth_per_hour(counter)
                writer.append(f"rollup day {counter.name}", times[-1] + 60_000, owners, [daily] * USERS)
        for at_ms in times:
            writer.append("rollup hourly", at_ms, [to_labels(HOURLY_EVALUATED)], [at_ms / 1000])
        writer.append("rollup daily", times[-1] + 60_000, [to_labels(DAILY_EVALUATED)], [times[-1] / 1000 + 60])
        if day % 8 == 7:
            store.maintain()


def fill_samples(writer: Writer, gpus: int, hours: float, counters: tuple[RolledUpCounter, ...]) -> None:
    count = int(hours * HOUR_MS / STEP_MS)
    series = [
        to_labels(counter.raw, **labels_of(counter, gpu, f"user{gpu % USERS}", KINDS[gpu % len(KINDS)]))
        for counter in counters
        for gpu in range(gpus)
    ]
    rates = np.repeat([growth_per_hour(counter) / 3600 for counter in counters], gpus)
    for number in range(count):
        at_ms = END_MS - (count - 1 - number) * STEP_MS
        writer.append("raw", at_ms, series, (rates * (1e6 + number * STEP_MS / 1000)).tolist())


def measure(what: str, allowed: str, work: Callable[[], object]) -> None:
    began, cpu = time.monotonic(), time.process_time()
    work()
    cpu, seconds = time.process_time() - cpu, time.monotonic() - began
    print(f"{what:<44}{cpu:>8.2f} s CPU{seconds:>8.2f} s{allowed:>12}", flush=True)


def report(store: Store, by: str, length_ms: int) -> None:
    engine = EmbeddedEngine(store, Engine(store))
    question = UsageQuestion(parse_grouping(by), END_MS - length_ms, END_MS)
    found = asyncio.run(usage_report(engine, question))
    if not found.rows or not found.invariant.holds:
        raise SystemExit(f"a wrong report: {found.missing}")


def measure_reports() -> None:
    for what, gpus, days, groupings in YEAR_AND_WEEK:
        with new_store(END_MS - days * DAY_MS) as (store, writer):
            fill_rollups(writer, store, gpus, days * 24)
            fill_samples(writer, gpus, 2, tuple(one for one in COUNTERS if not one.skips_zero))
            store.maintain()
            for by in groupings:
                work = partial(report, store, by, days * DAY_MS)
                measure(f"{what}, by {by}", "≤ 5 s", work)


def measure_receipt() -> None:
    job = {"kind": "job", "name": "4711"}
    with new_store(END_MS - 6 * HOUR_MS) as (store, writer):
        fill_samples(writer, 64, 6, COUNTERS)
        names = [
            f"gpuscope_owner_{one}_total"
            for one in ("held_seconds", "gpu_seconds", "busy_seconds", "energy_joules")
        ]
        names += ["gpuscope_owner_memory_bytes", "gpuscope_owner_idle_seconds"]
        series = [
            to_labels(name, instance="n0:9400", gpu=str(gpu), uuid=f"GPU-{gpu}", **job)
            for name in names
            for gpu in range(8)
        ]
        for number in range(5 * 240):
            at_ms = END_MS - (5 * 240 - number) * STEP_MS + 1
            writer.append("job", at_ms, series, [15.0 * number] * len(series))
        engine = EmbeddedEngine(store, Engine(store))
        question = parse_job("4711", END_MS - 30 * DAY_MS, END_MS)
        measure(
            "receipt of a job on 8 GPUs, 5 h", "≤ 0.5 s", lambda: asyncio.run(read_receipt(engine, question))
        )


def week_of_1000_gpus() -> tuple[list[Labels], Floats, Floats]:
    """Series, their first values, and how much they grow in a second. Every third GPU waits for its data."""
    rows: list[tuple[Labels, float, float]] = []
    for gpu in range(1000):
        node, number = f"n{gpu // 8:03}", gpu % 8
        place = {"instance": f"{node}:9400", "job": "gpuscope", "gpu": str(number), "uuid": f"GPU-{gpu:04}"}
        job = str(4711 + gpu // 8)
        account = {**place, "kind": "job", "name": job}
        process = {**place, "pid": str(gpu), "slurm_job": job, "user": f"user{gpu // 8 % USERS}"}
        utilization = 0.3 if number % 3 == 0 else 0.95
        gauges = (
            (place, "gpu_up", 1.0), ({**place, "node": node, "model": "NVIDIA H100"}, "gpu_info", 1.0),
            ({**place, "state": "active"}, "gpu_processes", 1.0), (place, "gpu_memory_total_bytes", 8e10),
            (place, "gpu_utilization_minute_ratio", utilization), (place, "gpu_utilization_ratio", utilization),
            (place, "gpu_power_minute_watts", 500.0), (account, "owner_gpus_held", 1.0),
            ({**place, "limit": "enforced"}, "gpu_power_limit_watts", 700.0),
            (account, "owner_memory_bytes", 4e10), (account, "owner_idle_seconds", 0.0),
            (process, "process_memory_bytes", 4e10), (process, "process_active", 1.0),
            (process, "process_idle_seconds", 0.0), (process, "process_children_cpu_ratio", 0.9),
            ({**process, "program": f"{job}.0"}, "process_info", 1.0),
            (process, "process_busiest_thread_ratio", 0.95 if number % 3 == 0 else 0.5),
            (process, "process_io_wait_ratio", 0.0), (process, "process_network_wait_ratio", 0.0),
        )  # fmt: skip
        rows += [(to_labels(f"gpuscope_{name}", **labels), value, 0.0) for labels, name, value in gauges]
        counters = (
            (account, "owner_held_seconds_total", 1.0), (account, "owner_gpu_seconds_total", 1.0),
            (account, "owner_busy_seconds_total", utilization), (account, "owner_energy_joules_total", 500.0),
            (place, "gpu_observed_seconds_total", 1.0), (process, "process_age_seconds", 1.0),
            ({**place, "reason": "hw_slowdown"}, "gpu_throttled_seconds_total", 0.0),
        )  # fmt: skip
        rows += [(to_labels(f"gpuscope_{name}", **labels), 0.0, rate) for labels, name, rate in counters]
    return [row[0] for row in rows], np.array([row[1] for row in rows]), np.array([row[2] for row in rows])


def measure_receipt_of_a_week() -> None:
    """A sample of each series every four minutes: an engine shows each for five."""
    series, first, rates = week_of_1000_gpus()
    start_ms, every_ms = END_MS - 7 * DAY_MS, 240_000
    with new_store(start_ms) as (store, writer):
        writer.append_growing("fleet", range(start_ms, END_MS, every_ms), series, first, rates)
        store.maintain()
        engine = EmbeddedEngine(store, Engine(store, skips_unneeded=True))
        past = FindingsOverTime(
            FindingLedger(engine), LiveFleet(no_fleet, "bench"), clock=lambda: END_MS / 1000
        )

        async def read_ledger() -> None:
            while (await past.windows(start_ms, END_MS))[0].start_ms > start_ms:
                pass

        async def receipt() -> None:
            reports = EmbeddedEngine(store, Engine(store))
            found = await read_receipt(reports, parse_job("4711", END_MS - 30 * DAY_MS, END_MS), past.windows)
            is_read = "missing.unread" not in {sentence.key for sentence in found.not_known}
            if len(found.gpus) != 8 or "waits_for_data" not in found.wait_shares or not is_read:
                raise SystemExit(f"a wrong receipt: {found.gpus}, {found.wait_shares}, {found.not_known}")

        measure("the ledger of a week, 1,000 GPUs", "", lambda: asyncio.run(read_ledger()))
        for _ in range(3):
            measure("receipt of a job of a week, 8 of 1,000 GPUs", "≤ 0.5 s", lambda: asyncio.run(receipt()))


async def no_fleet() -> SortLater:
    return dict


def hourly_group(store: Store, counter: RolledUpCounter) -> RuleGroup:
    document, _ = parse_first_document(f"groups:\n{rollup_groups()[HOURLY_GROUP]}", "bench.yml")
    (spec,) = read_groups(document, "bench.yml", SECOND_NS, load_templates(Settings()))
    rules = tuple(rule for rule in spec.rules if rule.name in (counter.growth_by_hour, counter.last_value))
    environment = RuleEnvironment(
        queries=EvaluatorQueries(Engine(store, max_samples=500_000_000)),
        samples=StoreWriter(store),
        alerts=NoAlerts(),
        context=AlertContext(load_templates(Settings()), {}, "http://bench"),
        clock=SystemClock(),
    )
    return RuleGroup(replace(spec, rules=rules), environment, is_restored=True)


def measure_rollups() -> None:
    global KINDS
    KINDS = ("user", "account", "job")
    total = 0.0
    for counter, series_per_gpu, times in ((COUNTERS[0], 3, 5), (COUNTERS[6], 1, 8)):
        with new_store(END_MS - 3 * HOUR_MS) as (store, writer):
            fill_samples(writer, 8000 * series_per_gpu, 2.1, (counter,))
            group = hourly_group(store, counter)
            cpu = time.process_time()
            group.evaluate((END_MS + 60_000) * 1_000_000)
            cpu = time.process_time() - cpu
            if group.failures:
                raise SystemExit(f"a rule failed: {[rule.last_error for rule in group.rules]}")
            total += times * cpu
            print(f"roll-up of {counter.name}, {8000 * series_per_gpu} series: {cpu:.2f} s CPU", flush=True)
    print(f"all roll-ups of 1,000 nodes of 8 GPUs: {total:.1f} s an hour, {total / 36:.2f} % of a core (≤ 2 %)")


def main() -> None:
    measure_receipt()
    measure_receipt_of_a_week()
    measure_rollups()
    measure_reports()


if __name__ == "__main__":
    main()
