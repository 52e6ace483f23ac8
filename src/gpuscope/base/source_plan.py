"""When a source is used, and its settings: what the program must know about a source before it imports it.

Each source is a package with a `plan.py` that defines `PLAN`. Every command reads all plans,
because their settings are flags; so a plan imports as little as it can, and is loaded without its package: an
agent that reads NVML must not pay for the code of DCGM or of the simulated fleet.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpuscope.base.plugins import Plugin, find_plugins

if TYPE_CHECKING:
    from gpuscope.base.settings import Settings

PLANS: Final = ("agent/sources/*/plan.py", "vendors/*/*/plan.py", "demo/plan.py")
"""Where sources are: those of every machine, those of a vendor, the simulated fleet."""


class SourceState(Protocol):
    """The state of a source, as its worker reports it."""

    name: str

    def fresh(self) -> Any:
        """A `Reading` or `ABSENT`."""

    def is_down(self) -> bool: ...

    def answering_for(self) -> float: ...


Wanted = Callable[[Sequence[SourceState]], bool]
"""Whether a source is needed now, judged by all sources of this machine."""


def always(states: Sequence[SourceState]) -> bool:
    return True


def is_down(name: str, states: Sequence[SourceState]) -> bool:
    return any(state.name == name and state.is_down() for state in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """`trust` orders sources: where two have the same value, that of the lower number is used.

    A selectable source is one that `--source` can name; with `--source auto` it is used if `in_auto`, and read
    while it is `wanted`, which the log explains with `why`. Any other source is used beside the selected one:
    always, or only if one of its `families` is served; with `beside_gpus` also wherever GPUs are read.
    `is_requested` overrides the families: True uses the source, False does not, None leaves it to them.
    """

    trust: int
    settings: type | None = None  # a frozen dataclass; each field is a row made by `setting_values.setting`
    selectable: bool = False
    in_auto: Callable[[Settings], bool] = lambda settings: False
    wanted: Wanted = always
    why: str = ""
    families: frozenset[str] = frozenset()
    beside_gpus: bool = False
    is_requested: Callable[[Settings], bool | None] = lambda settings: None


@cache
def source_plans() -> Mapping[str, SourcePlan]:
    """By the name users type (the folder `kernel_log` is `kernel-log`), the most trusted first."""
    plans = {name: _load(plugin) for name, plugin in _sources().items()}
    return dict(sorted(plans.items(), key=lambda item: (item[1].trust, item[0])))


def source_package(name: str) -> str:
    """The package of a source, by the name users type."""
    return _sources()[name].package


@cache
def _sources() -> Mapping[str, Plugin]:
    return {name.replace("_", "-"): plugin for name, plugin in find_plugins(PLANS).items()}


def selectable_sources() -> tuple[str, ...]:
    return tuple(name for name, plan in source_plans().items() if plan.selectable)


def families_without_gpus() -> frozenset[str]:
    """Families that are served from a source of their own, on machines without a GPU too."""
    return frozenset(family for plan in source_plans().values() for family in plan.families)


def source_settings() -> tuple[type, ...]:
    return tuple(plan.settings for plan in source_plans().values() if plan.settings is not None)


def source_setting_names(group: str | None = None) -> tuple[str, ...]:
    """Names of the sources' settings: all, or those of one group of the command line's help."""
    rows = (row for rows in source_settings() for row in fields(rows))
    return tuple(row.name for row in rows if group in (None, row.metadata["group"]))


def _load(plugin: Plugin) -> SourcePlan:
    name = f"{plugin.package}.plan"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, plugin.file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{plugin.file} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        # Under its full name, so that a later import by the source itself finds this module.
        sys.modules[name] = module
        spec.loader.exec_module(module)
    plan: SourcePlan = sys.modules[name].PLAN
    return plan
