"""Stand-ins for other exporters: each module here, and in the `stand_ins/` of a vendor, has a `STAND_IN`.

A stand-in has the original's port, paths, probes, metric families, flags and environment variables, so that
nothing else has to change. An unsupported flag logs one warning that names it. Explicit gpuscope flags take
precedence.
"""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
from collections.abc import Sequence
from dataclasses import replace

from gpuscope.agent.families import load_family
from gpuscope.agent.families.stand_in import ListenerPlan, StandIn, own_listener
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.vendor import vendors

log = logging.getLogger("gpuscope")

# The official names with an underscore; the others use hyphens.
_SPELLED_WITH_UNDERSCORE = ("node_exporter",)


def _modules() -> dict[str, str]:
    """The module of each stand-in by the exporter's official name."""
    modules = {
        name.replace("-", "_"): (name, f"gpuscope.vendors.{vendor.name}.stand_ins")
        for vendor in vendors().values()
        for name in vendor.stand_ins
    }
    for module in pkgutil.iter_modules(__path__):
        spelled = module.name in _SPELLED_WITH_UNDERSCORE
        modules[module.name] = (module.name if spelled else module.name.replace("_", "-"), __name__)
    return {name: f"{package}.{module}" for module, (name, package) in modules.items()}


def stand_in_names() -> tuple[str, ...]:
    return tuple(sorted(_modules()))


def load_stand_in(name: str) -> StandIn:
    modules = _modules()
    if name not in modules:
        raise UsageError(f"--as: unknown exporter {name!r}; known are {', '.join(stand_in_names())}")
    stand_in: StandIn = importlib.import_module(modules[name]).STAND_IN
    return stand_in


def plan_listeners(settings: Settings, stand_ins: Sequence[tuple[str, Sequence[str]]]) -> list[ListenerPlan]:
    """The agent's own listener, or one per `--as NAME` with the arguments after it."""
    if not stand_ins:
        return [own_listener(settings)]
    if settings.listen is not None and len(stand_ins) > 1:
        raise UsageError("--listen is ambiguous with several --as; use each exporter's own address flag")
    plans = []
    for name, argv in stand_ins:
        plan, warnings = load_stand_in(name).configure(settings, argv, os.environ)
        for warning in warnings:
            log.warning("as %s: %s", name, warning)
        plans.append(_with_our_flags(plan, settings))
    return plans


def _with_our_flags(plan: ListenerPlan, settings: Settings) -> ListenerPlan:
    if settings.listen is not None:
        plan = replace(plan, host=settings.listen[0], port=settings.listen[1])
    if settings.web_config_file:
        plan = replace(plan, web_config_file=settings.web_config_file)
    if settings.families:
        specs = [load_family(name) for name in settings.families]
        builders = tuple(spec.build(settings) for spec in specs)
        plan = replace(
            plan,
            families=settings.families,
            builders=builders,
            openmetrics=all(spec.openmetrics for spec in specs),
            on_demand=all(spec.on_demand for spec in specs),
        )
    return plan


def settings_for(plans: Sequence[ListenerPlan], settings: Settings) -> Settings:
    """The settings with the stand-ins' source settings, for those that the user did not set."""
    default = Settings()
    changes = {
        name: value
        for plan in plans
        for name, value in plan.source_settings.items()
        if getattr(settings, name) == getattr(default, name)
    }
    return replace(settings, **changes) if changes else settings
