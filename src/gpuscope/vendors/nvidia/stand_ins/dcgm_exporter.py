"""The stand-in for dcgm-exporter: port 9400, `/health`, `DCGM_FI_*`, all its flags and variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope.agent.families.stand_in import ListenerPlan, StandIn
from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_argument, parse_listen
from gpuscope.base.settings import Settings
from gpuscope.vendors.nvidia.families.dcgm.builder import DcgmBuilder, build_with
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions, DeviceSelector, parse_selector

# Parses dcgm-exporter's flags and environment variables.
#
# All 38 flags are known; a flag takes precedence over its variable. An unsupported one gives a warning that
# says what to do instead. Parsing follows Go's flag package: `-flag`, `--flag`, `-flag=value`, no bundling.


def _text(text: str) -> str:
    return text


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("is not an integer") from None


_SWITCH_WORDS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def _switch(text: str) -> bool:
    if text not in _SWITCH_WORDS:
        raise ValueError("is neither true nor false")
    return _SWITCH_WORDS[text]


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"is not one of {', '.join(choices)}")
        return text

    return parse


def _selector(text: str) -> DeviceSelector:
    return parse_selector(text, "")


@dataclass(frozen=True, slots=True)
class _Option:
    """`unsupported` says what to do instead of an unsupported option; empty for a supported one."""

    flag: str
    env: str
    parse: Callable[[str], Any]
    alias: str = ""
    unsupported: str = ""

    @property
    def name(self) -> str:
        return self.flag.replace("-", "_")


_LEVELS = ("NONE", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "VERB")
_NO_DUMPS = "gpuscope writes no debug dumps; use --log-level debug"
_NO_CLAIMS = "resource claims have pod, namespace and container labels only in the native family"
_NO_DCGM_LOG = "DCGM's log is configured in the host engine"

OPTIONS: tuple[_Option, ...] = (
    _Option("collectors", "DCGM_EXPORTER_COLLECTORS", _text, "f"),
    _Option("address", "DCGM_EXPORTER_LISTEN", _text, "a"),
    _Option("collect-interval", "DCGM_EXPORTER_INTERVAL", _number, "c"),
    _Option("kubernetes", "DCGM_EXPORTER_KUBERNETES", _switch, "k"),
    _Option("use-old-namespace", "DCGM_EXPORTER_USE_OLD_NAMESPACE", _switch, "o"),
    _Option("cpu-devices", "DCGM_EXPORTER_CPU_DEVICES_STR", _selector, "p", "CPUs are not read through DCGM"),
    _Option(
        "configmap-data",
        "DCGM_EXPORTER_CONFIGMAP_DATA",
        _text,
        "m",
        "mount the ConfigMap as a file and give it with -f",
    ),
    _Option("remote-hostengine-info", "DCGM_REMOTE_HOSTENGINE_INFO", _text, "r"),
    _Option("kubernetes-enable-pod-labels", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", _switch),
    _Option("kubernetes-enable-pod-uid", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", _switch),
    _Option("kubernetes-gpu-id-type", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", _one_of("uid", "device-name")),
    _Option(
        "kubernetes-pod-label-allowlist-regex", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", _words
    ),
    _Option("devices", "DCGM_EXPORTER_DEVICES_STR", _selector, "d"),
    _Option(
        "no-hostname",
        "DCGM_EXPORTER_NO_HOSTNAME",
        _switch,
        "n",
        "it has had no effect in dcgm-exporter since 4.0.0, and has none here",
    ),
    _Option("switch-devices", "DCGM_EXPORTER_OTHER_DEVICES_STR", _selector, "s", "NVSwitches are not read"),
    _Option("fake-gpus", "DCGM_EXPORTER_USE_FAKE_GPUS", _switch, "", "use --source demo for simulated GPUs"),
    _Option("web-config-file", "DCGM_EXPORTER_WEB_CONFIG_FILE", _text),
    _Option("xid-count-window-size", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", _number, "x"),
    _Option("replace-blanks-in-model-name", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", _switch, "rbmn"),
    _Option("debug", "DCGM_EXPORTER_DEBUG", _switch),
    _Option("clock-events-count-window-size", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", _number),
    _Option("enable-dcgm-log", "DCGM_EXPORTER_ENABLE_DCGM_LOG", _switch, "", _NO_DCGM_LOG),
    _Option("dcgm-log-level", "DCGM_EXPORTER_DCGM_LOG_LEVEL", _one_of(*_LEVELS), "", _NO_DCGM_LOG),
    _Option("log-format", "DCGM_EXPORTER_LOG_FORMAT", _one_of("text", "json"), "", "the log is text"),
    _Option("pod-resources-kubelet-socket", "DCGM_POD_RESOURCES_KUBELET_SOCKET", _text),
    _Option("hpc-job-mapping-dir", "DCGM_HPC_JOB_MAPPING_DIR", _text),
    _Option("nvidia-resource-names", "NVIDIA_RESOURCE_NAMES", _words),
    _Option("kubernetes-virtual-gpus", "KUBERNETES_VIRTUAL_GPUS", _switch),
    _Option("dump-enabled", "DCGM_EXPORTER_DUMP_ENABLED", _switch, "", _NO_DUMPS),
    _Option("dump-directory", "DCGM_EXPORTER_DUMP_DIRECTORY", _text, "", _NO_DUMPS),
    _Option("dump-retention", "DCGM_EXPORTER_DUMP_RETENTION", _number, "", _NO_DUMPS),
    _Option("dump-compression", "DCGM_EXPORTER_DUMP_COMPRESSION", _switch, "", _NO_DUMPS),
    _Option("kubernetes-enable-dra", "KUBERNETES_ENABLE_DRA", _switch, "", _NO_CLAIMS),
    # These three have no effect: nothing is validated at start, and GPU changes are always followed.
    _Option("disable-startup-validate", "DISABLE_STARTUP_VALIDATE", _switch),
    _Option("enable-gpu-bind-unbind-watch", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", _switch),
    _Option("gpu-bind-unbind-poll-interval", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", _text),
    _Option("enable-pprof", "DCGM_EXPORTER_ENABLE_PPROF", _switch, "", "gpuscope has no /debug/pprof"),
    _Option(
        "web-systemd-socket",
        "DCGM_EXPORTER_SYSTEMD_SOCKET",
        _switch,
        "",
        "give the address with -a instead of a systemd socket",
    ),
)

_BY_FLAG = {name: option for option in OPTIONS for name in (option.flag, option.alias) if name}


def parse_dcgm_exporter_args(
    argv: Sequence[str], env: Mapping[str, str]
) -> tuple[DcgmOptions, tuple[str, ...]]:
    """dcgm-exporter's options from its command line (without the program's name) and its environment."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        text = env.get(option.env)
        if text is not None and (text or option.parse is _text):
            values[option.name] = _parse(option, text, option.env)
    rest = _parse_flags(argv, values)
    options = DcgmOptions(**values, given=frozenset(values))
    warnings = [
        f"--{option.flag} is not supported: {option.unsupported}"
        for option in OPTIONS
        if option.unsupported and getattr(options, option.name) != getattr(DcgmOptions(), option.name)
    ]
    warnings += [f"argument {word!r} is ignored, as dcgm-exporter does" for word in rest]
    return options, tuple(warnings)


def _parse_flags(argv: Sequence[str], values: dict[str, Any]) -> Iterable[str]:
    """Adds the flags to `values`; returns the arguments after the last flag."""
    words = list(argv)
    lists: dict[str, tuple[str, ...]] = {}
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        option = _BY_FLAG.get(name)
        if option is None:
            raise UsageError(f"dcgm-exporter has no flag {word.partition('=')[0]}")
        if not equals:
            if option.parse is _switch:
                text = "true"
            elif not words:
                raise UsageError(f"{word} needs a value")
            else:
                text = words.pop(0)
        value = _parse(option, text, word.partition("=")[0])
        if option.parse is _words:  # a repeated flag extends the list and replaces the variable's
            value = lists[option.name] = (*lists.get(option.name, ()), *value)
        values[option.name] = value
    return words


def _parse(option: _Option, text: str, origin: str) -> Any:
    try:
        return option.parse(text)
    except UsageError as error:
        raise UsageError(f"{origin}{error}") from None
    except ValueError as error:
        raise UsageError(f"{origin}: {text!r} {error}") from None


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
