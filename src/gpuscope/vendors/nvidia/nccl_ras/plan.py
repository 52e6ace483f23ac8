"""When NCCL jobs are asked for their ranks: beside GPUs, unless a setting forbids it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.base.setting_values import parse_switch, setting
from gpuscope.base.source_plan import SourcePlan

if TYPE_CHECKING:
    from gpuscope.base.settings import Settings


@dataclass(frozen=True, kw_only=True)
class NcclRasSettings:
    no_nccl_ras: bool = setting(
        False, parse_switch, "do not ask the NCCL jobs on this machine which of their ranks are behind"
    )


def _is_requested(settings: Settings) -> bool | None:
    return False if getattr(settings, "no_nccl_ras", False) else None


PLAN = SourcePlan(trust=86, settings=NcclRasSettings, is_requested=_is_requested)
