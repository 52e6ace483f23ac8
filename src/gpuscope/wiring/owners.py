"""Builds what finds owners: the lookup of processes, and a worker for each outside thing that can hang."""

from __future__ import annotations

from gpuscope.collect.clock import Clock
from gpuscope.collect.collector import Planned
from gpuscope.collect.owner_counters import OwnerCounters
from gpuscope.collect.ownership import OwnershipBook
from gpuscope.collect.runner import Runner
from gpuscope.collect.sessions import WAIT_SECONDS, Sessions
from gpuscope.owners.lookup import ProcessLookup, lookup_spec
from gpuscope.owners.proc import Proc
from gpuscope.owners.users import UserBook
from gpuscope.settings import Settings


def build_ownership(settings: Settings, clock: Clock) -> tuple[OwnershipBook, list[Planned]]:
    """What joins processes and owners, and the workers it needs."""
    proc = Proc(settings.path_procfs)
    lookup = ProcessLookup(proc, UserBook(settings.path_rootfs), settings.full_commands)
    runner = Runner(lookup_spec(lookup), settings, clock)

    def poke() -> None:
        if runner.start_cycle_if_due():
            runner.wait(WAIT_SECONDS)

    sessions = Sessions(settings.idle_after, proc, lookup, poke)
    counters = OwnerCounters(longest_gap_seconds=max(30.0, 10 * settings.interval))
    return OwnershipBook(sessions, counters), [Planned(runner)]
