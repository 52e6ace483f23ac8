"""Stands in for dcgm-exporter: port 9400, `/health`, `DCGM_FI_*`, all its flags and environment variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.errors import UsageError
from gpuscope.metrics.families.dcgm.builder import DcgmBuilder, build_with
from gpuscope.metrics.families.dcgm.options import DcgmOptions
from gpuscope.server.listener import ListenerPlan
from gpuscope.server.stand_ins import StandIn
from gpuscope.server.stand_ins.dcgm_exporter_flags import parse_dcgm_exporter_args
from gpuscope.setting_values import parse_listen
from gpuscope.settings import Settings

FASTEST_SECONDS = 0.1  # below it the driver answers with the same numbers again


def _configure(
    settings: Settings, argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[ListenerPlan, Sequence[str]]:
    options, warnings = parse_dcgm_exporter_args(argv, environment)
    try:
        host, port = parse_listen(options.address)
    except ValueError as error:
        raise UsageError(f"--address: {options.address!r} is {error}") from None
    builder = build_with(settings, options)
    wanted = _reading_settings(options, builder)
    if "collectors" in options.given:  # so that DCGM is asked for the ids it lists
        wanted["counters"] = options.collectors
    if "remote_hostengine_info" in options.given:
        wanted["dcgm_host"] = options.remote_hostengine_info
    if options.hpc_job_mapping_dir:
        wanted["job_map_dir"] = options.hpc_job_mapping_dir
    if options.kubernetes:
        wanted |= _kubernetes_settings(options)
    plan = ListenerPlan(
        title="GPU Exporter",
        host=host,
        port=port,
        families=("dcgm",),
        builders=(builder,),
        probes=("/health",),
        web_config_file=options.web_config_file,
        source_settings=wanted,
    )
    return plan, warnings


def _reading_settings(options: DcgmOptions, builder: DcgmBuilder) -> dict[str, object]:
    """`-c`: how often the fields of its counters file are read; 0 leaves that to us."""
    wanted: dict[str, object] = {"dcgm_fields": builder.field_ids()}
    if options.collect_interval <= 0:
        return wanted
    seconds = max(FASTEST_SECONDS, options.collect_interval / 1000)
    wanted["dcgm_interval"] = seconds
    if seconds < Settings().interval:
        wanted["interval"] = seconds
    return wanted


def _kubernetes_settings(options: DcgmOptions) -> dict[str, object]:
    """What its pod labels need: the kubelet's socket, and for the pods' own labels the API server."""
    wanted: dict[str, object] = {"kubelet_socket": options.pod_resources_kubelet_socket}
    if options.nvidia_resource_names:
        wanted["resource_names"] = options.nvidia_resource_names
    if options.kubernetes_enable_pod_labels:
        wanted |= {"pod_labels": ("*",), "kubernetes_api": True}
    return wanted


STAND_IN = StandIn("dcgm-exporter", _configure)
