"""The stand-in for dcgm-exporter: port 9400, `/health`, `DCGM_FI_*`, all its flags and variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.base.setting_values import parse_argument, parse_listen
from gpuscope.base.settings import Settings
from gpuscope.serve.listener import ListenerPlan
from gpuscope.serve.stand_ins import StandIn
from gpuscope.serve.stand_ins.dcgm_exporter_flags import parse_dcgm_exporter_args
from gpuscope.vendors.nvidia.families.dcgm.builder import DcgmBuilder, build_with
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions

MIN_INTERVAL_SECONDS = 0.1  # the driver updates its values no faster


def _configure(
    settings: Settings, argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[ListenerPlan, Sequence[str]]:
    options, warnings = parse_dcgm_exporter_args(argv, environment)
    host, port = parse_argument(parse_listen, options.address, "--address")
    builder = build_with(settings, options)
    source_settings = _reading_settings(options, builder)
    if "collectors" in options.given:  # so that the fields it lists are read from DCGM
        source_settings["counters"] = options.collectors
    if "remote_hostengine_info" in options.given:
        source_settings["dcgm_host"] = options.remote_hostengine_info
    if options.hpc_job_mapping_dir:
        source_settings["job_map_dir"] = options.hpc_job_mapping_dir
    if options.kubernetes:
        source_settings |= _kubernetes_settings(options)
    plan = ListenerPlan(
        title="GPU Exporter",
        host=host,
        port=port,
        families=("dcgm",),
        builders=(builder,),
        probes=("/health",),
        web_config_file=options.web_config_file,
        source_settings=source_settings,
    )
    return plan, warnings


def _reading_settings(options: DcgmOptions, builder: DcgmBuilder) -> dict[str, object]:
    """`-c`: the read interval of the fields in the counters file; 0 means gpuscope's default."""
    source_settings: dict[str, object] = {"dcgm_fields": builder.field_ids()}
    if options.collect_interval <= 0:
        return source_settings
    seconds = max(MIN_INTERVAL_SECONDS, options.collect_interval / 1000)
    source_settings["dcgm_interval"] = seconds
    if seconds < Settings().interval:
        source_settings["interval"] = seconds
    return source_settings


def _kubernetes_settings(options: DcgmOptions) -> dict[str, object]:
    """Settings for pod labels: the kubelet's socket, and the API server for the pods' own labels."""
    source_settings: dict[str, object] = {"kubelet_socket": options.pod_resources_kubelet_socket}
    if options.nvidia_resource_names:
        source_settings["resource_names"] = options.nvidia_resource_names
    if options.kubernetes_enable_pod_labels:
        source_settings |= {"pod_labels": ("*",), "kubernetes_api": True}
    return source_settings


STAND_IN = StandIn("dcgm-exporter", _configure)
