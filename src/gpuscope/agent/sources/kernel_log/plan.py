"""When the kernel log is read: always, beside the source of GPU values."""

from __future__ import annotations

from gpuscope.base.source_plan import SourcePlan

PLAN = SourcePlan(trust=80)
