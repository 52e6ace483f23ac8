"""When InfiniBand ports and PCIe links are read: beside GPUs, and for the `host` family without GPUs."""

from __future__ import annotations

from gpuscope.base.source_plan import SourcePlan

PLAN = SourcePlan(trust=85, families=frozenset({"host"}), beside_gpus=True)
