"""The stand-in for nvidia_gpu_exporter 1.x: port 9835, `nvidia_smi_*`, its flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from gpuscope.agent.families.stand_in import Flag, ListenerPlan, StandIn, parse_flags
from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_argument, parse_duration, parse_listen
from gpuscope.base.settings import Settings
from gpuscope.vendors.nvidia.families.nvidia_smi.builder import NvidiaSmiBuilder, Options
from gpuscope.vendors.nvidia.families.nvidia_smi.columns import KNOWN_FIELDS
from gpuscope.vendors.nvidia.nvidia_smi.plan import NvidiaSmiSettings
from gpuscope.vendors.nvidia.nvidia_smi.smi_source import queryable_fields

_TIMEOUTS = "use gpuscope's own connection limits"
_FLAGS = {
    "web.listen-address": Flag(),
    "web.telemetry-path": Flag(),
    "web.config.file": Flag(),
    "web.systemd-socket": Flag(switch=True, unsupported="give the address with --web.listen-address"),
    "web.network": Flag(unsupported="gpuscope listens on TCP"),
    "web.read-timeout": Flag(unsupported=_TIMEOUTS),
    "web.read-header-timeout": Flag(unsupported=_TIMEOUTS),
    "web.write-timeout": Flag(unsupported=_TIMEOUTS),
    "web.idle-timeout": Flag(unsupported=_TIMEOUTS),
    "web.max-requests": Flag(unsupported=_TIMEOUTS),
    "web.timeout-offset": Flag(
        unsupported="values are read in the background, so a scrape never waits for them"
    ),
    "web.enable-pprof": Flag(switch=True, unsupported="gpuscope has no /debug/pprof"),
    "nvidia-smi-command": Flag(),
    "query-field-names": Flag(),
    "query-field-names-exclude": Flag(),
    "collect.backend": Flag(),
    "collect.interval": Flag(),
    "collect.timeout": Flag(),
    "collect.compute-apps": Flag(switch=True),
    "collect.compute-apps-mig": Flag(switch=True),
    "collect.pcie-throughput": Flag(switch=True),
    "demo-config": Flag(unsupported="--source demo has scenarios of its own"),
    "shutdown-on-error": Flag(switch=True, unsupported="gpuscope keeps serving and reports the failed source"),
    "log.level": Flag(unsupported="use --log-level"),
    "log.format": Flag(unsupported="the log is text"),
}
_BACKENDS = {"exec": "nvidia-smi", "nvml": "nvml", "demo": "demo"}


def _duration(values: Mapping[str, str], flag: str) -> float | None:
    if flag not in values:
        return None
    return parse_argument(parse_duration, values[flag], f"--{flag}")


def _source_settings(values: Mapping[str, str]) -> dict[str, object]:
    source_settings: dict[str, object] = {}
    backend = values.get("collect.backend")
    if backend is not None:
        if backend not in _BACKENDS:
            raise UsageError(f"--collect.backend: {backend!r} is not one of {', '.join(_BACKENDS)}")
        source_settings["source"] = _BACKENDS[backend]
    if "nvidia-smi-command" in values:
        source_settings["nvidia_smi_command"] = values["nvidia-smi-command"]
    interval = _duration(values, "collect.interval")
    if interval:
        source_settings["nvidia_smi_interval"] = interval
    timeout = _duration(values, "collect.timeout")
    if timeout:
        source_settings["nvidia_smi_timeout"] = timeout
    return source_settings


def _check(options: Options, settings: Settings, values: Mapping[str, str]) -> None:
    """Rejects the options that nvidia_gpu_exporter rejects at start."""
    uses_command = options.backend == "exec"
    if options.compute_apps_mig and uses_command:
        raise UsageError(
            "--collect.compute-apps-mig: nvidia-smi does not say which instance a process is on; "
            "use --collect.backend=nvml"
        )
    if options.compute_apps_mig and not options.compute_apps:
        raise UsageError("--collect.compute-apps-mig needs --collect.compute-apps")
    if options.pcie_throughput and uses_command:
        raise UsageError(
            "--collect.pcie-throughput: nvidia-smi has no such numbers; use --collect.backend=nvml"
        )
    unknown = [field for field in options.query_field_names if field not in KNOWN_FIELDS]
    if unknown and uses_command:  # a newer driver may have fields that KNOWN_FIELDS lacks
        own = settings.view(NvidiaSmiSettings)
        command = values.get("nvidia-smi-command", own.nvidia_smi_command)
        listed = queryable_fields(command, own.nvidia_smi_timeout)
        unknown = [field for field in unknown if field not in listed]
    if unknown:
        near = get_close_matches(unknown[0], KNOWN_FIELDS, 1, 0.8)
        raise UsageError(
            f"--query-field-names: nvidia-smi has no field {unknown[0]!r}"
            + (f" (did you mean {near[0]}?)" if near else "; `nvidia-smi --help-query-gpu` lists them")
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _configure(
    settings: Settings, argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[ListenerPlan, Sequence[str]]:
    values, warnings = parse_flags("nvidia_gpu_exporter", argv, _FLAGS)
    fields = values.get("query-field-names", "AUTO")
    # The original runs nvidia-smi by default, so a failure of nvidia-smi must be visible as its failure.
    default_backend = "exec" if settings.source in ("auto", "nvidia-smi") else ""
    options = Options(
        backend=values.get("collect.backend", default_backend),
        compute_apps=values.get("collect.compute-apps") == "true",
        compute_apps_mig=values.get("collect.compute-apps-mig") == "true",
        pcie_throughput=values.get("collect.pcie-throughput") == "true",
        query_field_names=() if fields == "AUTO" else _words(fields),
        query_field_names_exclude=_words(values.get("query-field-names-exclude", "")),
    )
    _check(options, settings, values)
    address = values.get("web.listen-address", ":9835")
    host, port = parse_argument(parse_listen, address, "--web.listen-address")
    plan = ListenerPlan(
        title="Nvidia GPU Exporter",
        host=host,
        port=port,
        families=("nvidia_smi",),
        builders=(NvidiaSmiBuilder(options),),
        metrics_path=values.get("web.telemetry-path", "/metrics"),
        web_config_file=values.get("web.config.file", ""),
        sources=("nvidia-smi",),
        source_settings=_source_settings(values),
    )
    return plan, warnings


STAND_IN = StandIn("nvidia_gpu_exporter", _configure)
