"""When the simulated fleet is used, and its settings: with `--source demo` or `up --demo`, never in `auto`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.base.setting_values import parse_count, parse_words, setting
from gpuscope.base.source_plan import SourcePlan

if TYPE_CHECKING:
    from gpuscope.base.settings import Settings

_GROUP = "simulated fleet"


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    scenario: tuple[str, ...] = setting(
        (),
        parse_words,
        "events in the simulated fleet: NAME or NAME@+2m; comma-separated or repeated",
        "NAME",
        group=_GROUP,
    )
    seed: int = setting(
        1, parse_count, "seed of the simulated fleet; the same seed gives the same values", "N", group=_GROUP
    )
    demo_gpus: int = setting(8, parse_count, "number of simulated GPUs per node", "N", group=_GROUP)
    demo_model: str = setting(
        "", str, "model of the simulated GPUs (default: a mixed fleet)", "MODEL", group=_GROUP
    )


def _is_requested(settings: Settings) -> bool | None:
    """For every family: the simulated fleet has a simulated Slurm too."""
    return True if settings.source == "demo" else None


PLAN = SourcePlan(trust=40, settings=DemoSettings, selectable=True, is_requested=_is_requested)
