"""When the simulated fleet is used, and its settings: with `--source demo` or `up --demo`, never in `auto`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.setting_values import parse_count, parse_words, setting
from gpuscope.source_plan import SourcePlan

_GROUP = "simulated fleet"


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    scenario: tuple[str, ...] = setting(
        (),
        parse_words,
        "what happens in the simulated fleet: NAME or NAME@+2m, several with commas or repeated",
        "NAME",
        group=_GROUP,
    )
    seed: int = setting(
        1, parse_count, "which simulated fleet: the same seed gives the same numbers", "N", group=_GROUP
    )
    demo_gpus: int = setting(8, parse_count, "how many simulated GPUs a node", "N", group=_GROUP)
    demo_model: str = setting(
        "", str, "model of the simulated GPUs (default: a mixed fleet)", "MODEL", group=_GROUP
    )


PLAN = SourcePlan(trust=40, settings=DemoSettings, selectable=True)
