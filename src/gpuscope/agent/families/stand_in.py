"""What an agent serves on one address, and the stand-in of another exporter, which has a plan of its own.

A stand-in parses the original's command line as kingpin does (`--flag=value`, `--flag value`, `--[no-]switch`)
by a table of its flags. An unknown flag is an error; a known but unsupported one is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope.agent.families import Builder, load_family
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.readings.device import NO_VALUES

DEFAULT_PORT = 9400
DEFAULT_FAMILIES = ("native", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerPlan:
    """One listening address of the agent: its own metric families, or those of an exporter it replaces."""

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


Configure = Callable[[Settings, Sequence[str], Mapping[str, str]], tuple[ListenerPlan, Sequence[str]]]
"""(gpuscope's settings, the exporter's arguments, environment) -> (listener plan, warnings)."""


@dataclass(frozen=True, slots=True)
class StandIn:
    name: str
    configure: Configure


@dataclass(frozen=True, slots=True)
class Flag:
    """`unsupported` says what to do instead of an unsupported flag; empty for a supported one."""

    switch: bool = False
    unsupported: str = ""


def parse_flags(
    exporter: str, argv: Sequence[str], table: Mapping[str, Flag]
) -> tuple[dict[str, str], list[str]]:
    """Values by flag name (switches as `true` or `false`), and warnings. The last of a repeated flag wins."""
    values: dict[str, str] = {}
    warnings: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        negated = name.startswith("no-") and name.removeprefix("no-") in table
        name = name.removeprefix("no-") if negated else name
        flag = table.get(name)
        if not word.startswith("--") or flag is None:
            raise UsageError(f"{exporter} has no flag {word.partition('=')[0]}")
        if flag.switch:
            text = "false" if negated else text or "true"
        elif not equals:
            if not words:
                raise UsageError(f"{word} of {exporter} needs a value")
            text = words.pop(0)
        if flag.unsupported:
            warnings.append(f"--{name} is not supported: {flag.unsupported}")
        values[name] = text
    return values, list(dict.fromkeys(warnings))
