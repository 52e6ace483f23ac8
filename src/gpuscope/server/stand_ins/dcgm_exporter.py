"""Stands in for dcgm-exporter: port 9400, `/health`, `DCGM_FI_*`, all its flags and environment variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.errors import UsageError
from gpuscope.metrics.dcgm.options import parse_dcgm_exporter_args
from gpuscope.metrics.families.dcgm import build_with
from gpuscope.server.listener import ListenerPlan
from gpuscope.server.stand_ins import StandIn
from gpuscope.settings import Settings, parse_listen


def _configure(
    settings: Settings, argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[ListenerPlan, Sequence[str]]:
    options, warnings = parse_dcgm_exporter_args(argv, environment)
    try:
        host, port = parse_listen(options.address)
    except ValueError as error:
        raise UsageError(f"--address: {options.address!r} is {error}") from None
    wanted: dict[str, object] = {}
    if "collectors" in options.given:  # so that DCGM is asked for the ids it lists
        wanted["counters"] = options.collectors
    if "remote_hostengine_info" in options.given:
        wanted["dcgm_host"] = options.remote_hostengine_info
    plan = ListenerPlan(
        title="GPU Exporter",
        host=host,
        port=port,
        families=("dcgm",),
        builders=(build_with(settings, options),),
        probes=("/health",),
        web_config_file=options.web_config_file,
        source_settings=wanted,
    )
    return plan, warnings


STAND_IN = StandIn("dcgm-exporter", _configure)
