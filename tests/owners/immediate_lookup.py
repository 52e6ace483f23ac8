"""A process lookup that answers at once, in the thread of its caller."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuscope.agent.owners.process_lookup import FactsByProcess, ProcessKey, ProcessLookup


class ImmediateLookup:
    def __init__(self, lookup: ProcessLookup) -> None:
        self._lookup = lookup
        self.known: FactsByProcess = {}

    def facts_of(self, keys: Collection[ProcessKey]) -> FactsByProcess:
        self._lookup.want(keys)
        self.known = self._lookup.read().value
        return self.known

    def failures(self) -> Mapping[str, int]:
        return self._lookup.failures
