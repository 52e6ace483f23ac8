"""When the machine's own values are read: only if the `host` family is served."""

from __future__ import annotations

from gpuscope.base.source_plan import SourcePlan

PLAN = SourcePlan(trust=90, families=frozenset({"host"}))
