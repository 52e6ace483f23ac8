"""Which sources this machine uses, in which order of trust, and when each is wanted.

Input: the settings, the families that are served and the plans of all sources; output: a list for the
collector. A source that is needed only while another one fails has a worker too, and is read when wanted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuscope.base.settings import Settings
from gpuscope.base.source_plan import SourcePlan, Wanted, always, source_plans

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
