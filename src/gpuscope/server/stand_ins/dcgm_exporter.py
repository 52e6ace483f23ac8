"""Stands in for dcgm-exporter: port 9400, `/health`, `DCGM_FI_*`, all its flags and environment variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.errors import UsageError
from gpuscope.metrics.dcgm.options import DcgmOptions, parse_dcgm_exporter_args
from gpuscope.metrics.families.dcgm import build_with
from gpuscope.server.listener import ListenerPlan
from gpuscope.server.stand_ins import StandIn
from gpuscope.setting_values import parse_listen
from gpuscope.settings import Settings


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
    if options.hpc_job_mapping_dir:
        wanted["job_map_dir"] = options.hpc_job_mapping_dir
    if options.kubernetes:
        wanted |= _kubernetes_settings(options)
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


def _kubernetes_settings(options: DcgmOptions) -> dict[str, object]:
    """What its pod labels need: the kubelet's socket, and for the pods' own labels the API server."""
    wanted: dict[str, object] = {"kubelet_socket": options.pod_resources_kubelet_socket}
    if options.nvidia_resource_names:
        wanted["resource_names"] = options.nvidia_resource_names
    if options.kubernetes_enable_pod_labels:
        wanted |= {"pod_labels": ("*",), "kubernetes_api": True}
    return wanted


STAND_IN = StandIn("dcgm-exporter", _configure)
