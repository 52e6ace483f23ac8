"""When NVML is read: with `--source auto` always, as the most trusted source."""

from __future__ import annotations

from gpuscope.base.source_plan import SourcePlan

PLAN = SourcePlan(trust=10, selectable=True, in_auto=lambda settings: True)
