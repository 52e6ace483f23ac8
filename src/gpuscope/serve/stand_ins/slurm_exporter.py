"""Stands in for vpenso's prometheus-slurm-exporter: port 8080, `slurm_*`, its flags.

`gpuscope_slurm_*` stand beside them: the dashboard, the rules and the page need them, and vpenso's names do not
say whether Slurm answers. The GPU metrics are served unless `-gpus-acct=false` is given: there they are off by
default because they need sacct and fail on Slurm 20.11 and newer; here they cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics
from gpuscope.agent.families.slurm.builder import SlurmBuilder
from gpuscope.agent.families.stand_in import Flag, ListenerPlan, StandIn, parse_flags
from gpuscope.base.setting_values import parse_argument, parse_listen, parse_switch
from gpuscope.base.settings import Settings

_EXPORTER = "prometheus-slurm-exporter"
_FLAGS = {
    "listen-address": Flag(),
    "gpus-acct": Flag(switch=True),
    "log.level": Flag(unsupported="use --log-level"),
    "log.format": Flag(unsupported="the log is text"),
    "web.listen-address": Flag(),
    "web.telemetry-path": Flag(),
    "web.config.file": Flag(),
}


def _configure(
    settings: Settings, argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[ListenerPlan, Sequence[str]]:
    values, warnings = parse_flags(_EXPORTER, [_two_dashes(word) for word in argv], _FLAGS)
    flag = "web.listen-address" if "web.listen-address" in values else "listen-address"
    address = values.get(flag, ":8080")
    host, port = parse_argument(parse_listen, address, f"-{flag}")
    with_gpus = parse_argument(parse_switch, values.get("gpus-acct", "true"), "-gpus-acct")
    plan = ListenerPlan(
        title="Slurm Exporter",
        host=host,
        port=port,
        families=("slurm",),
        builders=(SlurmBuilder(with_gpus=with_gpus), SlurmMetrics()),
        metrics_path=values.get("web.telemetry-path", "/metrics"),
        web_config_file=values.get("web.config.file", ""),
    )
    return plan, warnings


def _two_dashes(word: str) -> str:
    """Go's flag package takes one dash or two."""
    return "-" + word if word.startswith("-") and not word.startswith("--") else word


STAND_IN = StandIn("slurm-exporter", _configure)
