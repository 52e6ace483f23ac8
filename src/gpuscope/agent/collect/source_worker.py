"""A source as a `Worker[Reading]`: reads the tiers that are due, and hands each error on exactly once.

Input: a `SourceSpec`; output: readings. Errors are taken from every reading, also from one that the next one
replaced before a snapshot was made of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gpuscope.agent.worker import ReadResult, Timing, Worker
from gpuscope.base.clock import Clock
from gpuscope.base.settings import Settings
from gpuscope.base.source_plan import SourcePlan, Wanted, always, source_plans
from gpuscope.model.readings import ErrorEvent, Reading, Snapshot
from gpuscope.model.source import Observer, Source, SourceSpec, Tier

# Which sources this machine uses, in which order of trust, and when each is wanted.
#
# Input: the settings, the families that are served and the plans of all sources; output: a list for the
# collector. A source that is needed only while another one fails has a worker too, and is read when wanted.

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SourceChoice:
    name: str
    wanted: Wanted = always
    why: str = ""


def choose_sources(
    settings: Settings,
    families: Collection[str],
    also: Collection[str] = (),
    plans: Mapping[str, SourcePlan] | None = None,
) -> list[SourceChoice]:
    """The most trusted first. `also` names sources that are wanted all the time."""
    plans = source_plans() if plans is None else plans
    without_gpus = {family for plan in plans.values() for family in plan.families}
    reads_gpus = not families or not without_gpus.issuperset(families)
    chosen = []
    for name, plan in plans.items():
        requested = plan.is_requested(settings)
        if requested is not None:
            used = requested
        elif plan.families:
            used = not plan.families.isdisjoint(families) or (plan.beside_gpus and reads_gpus)
        elif settings.source == AUTO and plan.selectable:
            used = reads_gpus and plan.in_auto(settings)
        else:
            used = reads_gpus and (not plan.selectable or name == settings.source)
        if used and settings.source == AUTO and name not in also:
            chosen.append(SourceChoice(name, plan.wanted, plan.why))
        elif used:
            chosen.append(SourceChoice(name))
    return chosen


MAX_WAITING_ERRORS = 100_000  # a storm of errors while no snapshot is made must not fill the memory


class SourceWorker(Worker[Reading]):
    def __init__(
        self, spec: SourceSpec, settings: Settings, clock: Clock, *, log_first_read: bool = True
    ) -> None:
        self._errors: deque[ErrorEvent] = deque(maxlen=MAX_WAITING_ERRORS)
        self.snapshot: Snapshot | None = None
        """The latest one, set by the collector."""
        slack = 0.5 * settings.interval
        super().__init__(
            spec.name,
            spec.summary,
            lambda: _TierReader(spec.open(settings), clock, slack, self._errors, lambda: self.snapshot),
            Timing(
                interval=spec.interval_seconds(settings), deadline=spec.deadline_seconds(settings), slack=slack
            ),
            clock,
            log_first_read=log_first_read,
        )

    def take_errors(self) -> list[ErrorEvent]:
        """Every event since the last call."""
        taken = []
        while self._errors:
            taken.append(self._errors.popleft())
        return taken


class _TierReader:
    """Reads a source with the tiers that are due. A source that was opened again is read whole first."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        slack: float,
        errors: deque[ErrorEvent],
        latest: Callable[[], Snapshot | None],
    ) -> None:
        self._source = source
        self._latest = latest
        self._clock = clock
        self._slack = slack
        self._errors = errors
        self._tier_read_at: dict[Tier, float] = {}

    def read(self) -> ReadResult[Reading]:
        snapshot = self._latest()
        if snapshot is not None and isinstance(self._source, Observer):
            self._source.observe(snapshot)
        reading = self._source.read(self._due_tiers(self._clock.monotonic()))
        self._errors.extend(reading.errors)
        return ReadResult(reading, reading.failures, not reading.unfinished, reading.down)

    def close(self) -> None:
        self._source.close()

    def _due_tiers(self, now: float) -> frozenset[Tier]:
        due = {
            tier
            for tier in Tier
            if tier not in self._tier_read_at or now - self._tier_read_at[tier] >= tier.value - self._slack
        }
        self._tier_read_at.update(dict.fromkeys(due, now))
        return frozenset(due)
