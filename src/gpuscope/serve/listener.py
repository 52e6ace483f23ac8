"""One listening address of the agent: its metric families, or those of the exporter it stands in for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuscope.agent.families import Builder, load_family
from gpuscope.base.settings import Settings
from gpuscope.model.readings.device import NO_VALUES

DEFAULT_PORT = 9400
DEFAULT_FAMILIES = ("native", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerPlan:
    title: str
    host: str
    port: int
    families: tuple[str, ...]
    builders: tuple[Builder, ...]
    openmetrics: bool = False
    on_demand: bool = False  # no builder needs to see every snapshot
    metrics_path: str = "/metrics"
    probes: tuple[str, ...] = ()  # further paths that return OK while the process runs
    web_config_file: str = ""
    sources: tuple[str, ...] = ()  # sources that are required even if `auto` would not choose them
    source_settings: Mapping[str, Any] = NO_VALUES  # defaults for settings that the user did not set


def own_listener(settings: Settings) -> ListenerPlan:
    families = settings.families or DEFAULT_FAMILIES
    specs = [load_family(name) for name in families]
    host, port = settings.listen or ("", DEFAULT_PORT)
    return ListenerPlan(
        title="gpuscope agent",
        host=host,
        port=port,
        families=families,
        builders=tuple(spec.build(settings) for spec in specs),
        openmetrics=all(spec.openmetrics for spec in specs),
        on_demand=all(spec.on_demand for spec in specs),
        web_config_file=settings.web_config_file,
    )
