"""The stand-in for node_exporter, limited to the family `host`: port 9100, its paths, its web flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.agent.families import load_family
from gpuscope.agent.families.stand_in import Flag, ListenerPlan, StandIn, parse_flags
from gpuscope.base.setting_values import parse_argument, parse_listen
from gpuscope.base.settings import Settings

_FLAGS = {
    "web.listen-address": Flag(),
    "web.telemetry-path": Flag(),
    "web.config.file": Flag(),
    "web.systemd-socket": Flag(switch=True, unsupported="give the address with --web.listen-address"),
    "web.disable-exporter-metrics": Flag(switch=True),
    "web.max-requests": Flag(unsupported="use gpuscope's own connection limits"),
    "path.procfs": Flag(),
    "path.sysfs": Flag(),
    "path.rootfs": Flag(),
    "path.udev.data": Flag(unsupported="udev's data is not read"),
    "log.level": Flag(unsupported="use --log-level"),
    "log.format": Flag(unsupported="the log is text"),
    "runtime.gomaxprocs": Flag(unsupported="gpuscope has no Go runtime"),
}
_COLLECTORS = (
    "cpu", "diskstats", "filesystem", "loadavg", "meminfo", "netdev", "stat", "time", "uname", "vmstat",
)  # fmt: skip


def _collector_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates the `--[no-]collector.X` flags from the others; one warning names all unsupported ones."""
    rest, unsupported = [], []
    for word in argv:
        name = word.removeprefix("--").removeprefix("no-")
        if not name.startswith("collector."):
            rest.append(word)
        elif word.removeprefix("--collector.") not in _COLLECTORS:
            unsupported.append(word)
    supported = ", ".join(_COLLECTORS)
    return rest, [
        f"not supported: {' '.join(unsupported)}; the collectors are {supported}"
    ] if unsupported else []


def _configure(
    settings: Settings, argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[ListenerPlan, Sequence[str]]:
    rest, about_collectors = _collector_flags(argv)
    values, warnings = parse_flags("node_exporter", rest, _FLAGS)
    address = values.get("web.listen-address", ":9100")
    host, port = parse_argument(parse_listen, address, "--web.listen-address")
    spec = load_family("host")
    paths = {
        f"path_{name}": values[f"path.{name}"]
        for name in ("procfs", "sysfs", "rootfs")
        if f"path.{name}" in values
    }
    plan = ListenerPlan(
        title="Node Exporter",
        host=host,
        port=port,
        families=("host",),
        builders=(spec.build(settings),),
        openmetrics=spec.openmetrics,
        on_demand=spec.on_demand,
        metrics_path=values.get("web.telemetry-path", "/metrics"),
        web_config_file=values.get("web.config.file", ""),
        source_settings=paths,
    )
    return plan, [*about_collectors, *warnings]


STAND_IN = StandIn("node_exporter", _configure)
