"""All settings, in one table. Precedence: flag, environment variable, file, default.

A field of `Settings` defines the flag (`--demo-gpus`), the environment variable (`GPUSCOPE_DEMO_GPUS`) and the
key of the TOML file (`demo_gpus`); its metadata holds the parser and the help text. The settings of a
source are in its `plan.py`. A wrong value is one sentence that names the value and its origin.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, fields
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuscope.base.errors import UsageError
from gpuscope.base.files import read_regular_text
from gpuscope.base.limits import Limits
from gpuscope.base.setting_values import (
    one_of,
    parse_argument,
    parse_bytes,
    parse_count,
    parse_counts,
    parse_duration,
    parse_http_url,
    parse_interval,
    parse_listen,
    parse_number,
    parse_positive,
    parse_positive_duration,
    parse_switch,
    parse_words,
    with_unit,
)
from gpuscope.base.setting_values import setting as _setting
from gpuscope.base.source_plan import selectable_sources, source_settings
from gpuscope.base.time_text import parse_time_zone

T = TypeVar("T")
ENV_PREFIX = "GPUSCOPE_"
DEFAULT_DATA = "~/.local/share/gpuscope"
DEMO_DATA = "~/.local/share/gpuscope-demo"
"""The default of `up --demo`: simulated history must not share a folder with real history."""
SETTINGS_FILES = (Path("~/.config/gpuscope/gpuscope.toml"), Path("/etc/gpuscope/gpuscope.toml"))


# Without the generated methods, which `Settings` has: those of a hundred fields cost memory.
@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class CoreSettings(Limits):
    """Every setting but those of the sources, which each source's `plan.py` has."""

    source: str = _setting(
        "auto",
        one_of("auto", *selectable_sources()),
        "source of GPU data; auto uses every available source",
        "NAME",
    )
    integrated_gpus: str = _setting(
        "auto",
        one_of("auto", "always", "never"),
        "read GPUs that are part of a processor; auto: only on machines without another GPU",
        "WHEN",
    )
    stand_in: tuple[str, ...] = _setting((), parse_words, "exporters to replace, each on its own port", "NAME")
    families: tuple[str, ...] = _setting(
        (), parse_words, "metric families to export instead of the default ones", "A,B"
    )
    listen: tuple[str, int] | None = _setting(
        None, parse_listen, "address to listen on (agent :9400, up and server 127.0.0.1:9470)", "HOST:PORT"
    )
    interval: float = _setting(
        1.0, parse_interval, "read interval of fast metrics (utilisation, memory, power)", "1s"
    )
    counters: str = _setting("", str, "dcgm-exporter CSV file that lists the dcgm family's metrics", "FILE.csv")
    fields: tuple[str, ...] = _setting(
        (), parse_words, "DCGM field ids to add to the dcgm_legacy family: +191,+51", "+ID,+ID"
    )
    node: str = _setting("", str, "node name in the metrics (default: $NODE_NAME or the host name)", "NAME")
    expected_gpus: int | None = _setting(
        None, parse_count, "expected number of GPUs, for machines where the PCI bus does not show it", "N"
    )
    path_procfs: str = _setting(
        "/proc", str, "mount point of the host's procfs; in a container for example /host/proc", "DIR"
    )
    path_sysfs: str = _setting(
        "/sys", str, "mount point of the host's sysfs; in a container for example /host/sys", "DIR"
    )
    path_rootfs: str = _setting(
        "/", str, "mount point of the host's root; in a container for example /host/root", "DIR"
    )
    web_config_file: str = _setting(
        "", str, "exporter-toolkit web configuration file: TLS, users, headers, rate limit", "FILE"
    )
    full_commands: bool = _setting(False, parse_switch, "export full command lines of GPU processes")
    idle_after: float = _setting(
        60.0, parse_duration, "time without SM activity after which a process counts as idle", "60s"
    )
    kubelet_socket: str = _setting(
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        str,
        "the kubelet's pod-resources socket, which reports the pods that GPUs are allocated to",
        "SOCKET",
    )
    pods_socket: str = _setting(
        "/var/lib/kubelet/pods-api/pods-api.sock",
        str,
        "the kubelet's socket that lists this node's pods (Kubernetes 1.36 and newer)",
        "SOCKET",
    )
    path_pod_logs: str = _setting(
        "/var/log/pods",
        str,
        "the kubelet's log folder; its names, and the links of `containers` beside it, map pod UIDs to pods",
        "DIR",
    )
    kubelet_url: str = _setting(
        "", str, "read the node's pods from the kubelet over HTTPS; needs `nodes/pods`", "https://HOST:10250"
    )
    kubelet_insecure: bool = _setting(
        False,
        parse_switch,
        "skip TLS verification of the kubelet at --kubelet-url; the token is still sent",
    )
    kubernetes_api: bool = _setting(
        False, parse_switch, "read the node's pods from the API server; needs `list` on `pods`"
    )
    kubelet_interval: float = _setting(5.0, parse_interval, "interval of requests to the kubelet", "5s")
    pod_labels: tuple[str, ...] = _setting(
        (), parse_words, "pod labels to add to a process's owner; * means all", "A,B"
    )
    resource_names: tuple[str, ...] = _setting(
        (), parse_words, "device plugin resources that are GPUs, besides nvidia.com/* and amd.com/gpu", "A,B"
    )
    container_sockets: tuple[str, ...] = _setting(
        (), parse_words, "Docker or Podman sockets, for container names and images", "SOCKET"
    )
    cri_sockets: tuple[str, ...] = _setting(
        (),
        parse_words,
        "containerd or CRI-O sockets, for container names and images; auto: the usual paths",
        "SOCKET|auto",
    )
    job_map_dir: str = _setting("", str, "folder where a Slurm prolog records the job of each GPU", "DIR")
    state_dir: str = _setting(
        "",
        str,
        "folder that keeps XID counters across restarts (default: $STATE_DIRECTORY, else none)",
        "DIR",
    )
    log_level: str = _setting(
        "info", one_of("debug", "info", "warning", "error"), "log level on standard error", "LEVEL"
    )

    data: str = _setting(
        DEFAULT_DATA,
        str,
        "data folder, used by one process at a time; with --demo: ~/.local/share/gpuscope-demo",
        "DIR",
    )
    store_interval: float = _setting(5.0, parse_interval, "interval at which local metrics are stored", "5s")
    retention: float = _setting(
        30 * 86400.0, with_unit(parse_positive_duration), "retention time of the history", "30d"
    )
    rollup_retention: float = _setting(
        400 * 86400.0,
        with_unit(parse_duration),
        "retention time of the roll-ups that usage reports read, if longer than --retention; 0: no roll-ups",
        "400d",
    )
    retention_bytes: int | None = _setting(
        None,
        parse_bytes,
        "maximum size of the data folder on disk; the oldest history is deleted first",
        "10GiB",
    )

    query_lookback: float = _setting(
        300.0,
        parse_positive_duration,
        "maximum age of the newest sample of a series in a query (lookback delta)",
        "5m",
    )
    admin_api: bool = _setting(
        False, parse_switch, "enable POST /api/v1/admin/tsdb/…, which deletes series and takes snapshots"
    )

    login: str = _setting(
        "auto",
        one_of("auto", "always"),
        "auto: require a login unless --listen is a loopback address; always: require it on loopback too",
        "WHEN",
    )
    session_lifetime: float = _setting(
        7 * 86400.0, with_unit(parse_duration), "lifetime of a login session", "7d"
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (), parse_words, "additional accepted Host names: a.example, *.b.example, or * for any", "A,B"
    )
    grafana_url: str = _setting(
        "",
        parse_http_url,
        "Grafana with the dashboards of `gpuscope render grafana`: the page links to it",
        "URL",
    )
    proxy_auth_header: str = _setting(
        "", str, "header with the user name set by a reverse proxy, for example X-Forwarded-User", "HEADER"
    )
    default_role: str = _setting(
        "viewer",
        one_of("viewer", "editor", "admin"),
        "role of users without one of their own: those of a web config file, and those a reverse proxy names",
        "ROLE",
    )
    proxy_auth_from: tuple[str, ...] = _setting(
        (), parse_words, "addresses of trusted reverse proxies, whose forwarded headers are used", "CIDR,…"
    )

    config: str = _setting("", str, "Prometheus configuration file with the targets to scrape", "FILE")
    targets: str = _setting(
        "", str, "targets to scrape without a configuration file: addresses or a file", "FILE|HOST:PORT,…"
    )
    scrape_interval: float = _setting(15.0, parse_interval, "scrape interval of --targets", "15s")
    store: str = _setting(
        "",
        str,
        "URL of a Prometheus, VictoriaMetrics, Thanos or Mimir to query instead of a local store",
        "URL",
    )
    store_tenant: str = _setting(
        "", str, "tenant of a multi-tenant --store, sent as X-Scope-OrgID and THANOS-TENANT", "NAME"
    )
    store_http_config: str = _setting(
        "", str, "credentials and TLS for --store, in the format of promtool's --http.config.file", "FILE"
    )
    remote_write: tuple[str, ...] = _setting(
        (), parse_words, "URLs to send samples to by Prometheus remote write", "URL,…"
    )
    remote_write_http_config: str = _setting(
        "",
        str,
        "credentials and TLS for --remote-write, in the format of promtool's --http.config.file",
        "FILE",
    )
    remote_write_interval: float = _setting(
        15.0, parse_interval, "interval at which an agent sends samples", "15s"
    )

    rules: tuple[str, ...] = _setting(
        (),
        parse_words,
        "rule files of Prometheus to evaluate, besides those of --config; * and ? match",
        "FILE,…",
    )
    evaluation_interval: float = _setting(
        15.0,
        parse_interval,
        "evaluation interval of rule groups that set none; a --config file has its own setting",
        "15s",
    )
    alerting: str = _setting(
        "", str, "Alertmanager's configuration file: who is notified of which alert", "FILE"
    )
    notify: tuple[str, ...] = _setting(
        (),
        parse_words,
        "where to send alerts without a file: mailto://…, slack://…, ntfy://…, https://… or an apprise URL",
        "URL",
    )
    heartbeat: str = _setting(
        "", str, "URL that gets a POST each minute while the Watchdog alert fires: a dead man's switch", "URL"
    )
    idle_policy: str = _setting(
        "", str, "file of the idle policy: who is warned about idle GPUs, and what runs then", "FILE"
    )
    digest: str = _setting(
        "", str, "where to mail a usage report regularly: mailto://USER:PASSWORD@HOST?to=…&from=…", "URL"
    )
    digest_every: str = _setting(
        "week",
        one_of("day", "week", "month"),
        "period of the mailed usage report: the last day, week or month; sent at 06:00 (--time-zone)",
        "day|week|month",
    )
    digest_by: str = _setting(
        "user", str, "rows of the mailed usage report, as in `gpuscope report usage --by`", "user"
    )
    co2: float | None = _setting(
        None, parse_number, "grams of CO₂ per kWh of your electricity, for reports", "475"
    )
    time_zone: tzinfo | None = _setting(  # noqa: RUF009 (a time zone never changes)
        None,
        parse_time_zone,
        "time zone of dates and days: in reports, findings over time and the mailed report (this machine's)",
        "Europe/Berlin",
    )
    external_url: str = _setting(
        "",
        parse_http_url,
        "address under which users open this server, for links (default: http://HOSTNAME:PORT)",
        "URL",
    )

    gpu_rate: str = _setting(
        "", str, "price of a GPU-hour for findings over time: 2.5, or by model H100=2.5,*=1", "PRICE"
    )

    dcgm_interval: float | None = _setting(
        None,
        parse_interval,
        "read interval of --dcgm-fields, if shorter than the default; dcgm-exporter's -c sets it",
        "30s",
    )
    dcgm_fields: tuple[int, ...] = _setting(
        (),
        parse_counts,
        "DCGM field ids to read at --dcgm-interval; --as dcgm-exporter uses those of its counters file",
        "ID,ID",
    )
    dcgm_hostname_label: str = _setting(
        "Hostname",
        one_of("Hostname", "hostname"),
        "spelling of the dcgm family's host label: Hostname up to dcgm-exporter 4.8.2, hostname after it",
        "LABEL",
    )

    demo_nodes: int | None = _setting(None, parse_positive, "number of simulated nodes", "N")

    def node_name(self) -> str:
        return self.node or os.environ.get("NODE_NAME", "") or socket.gethostname()

    def view(self, rows: type[T]) -> T:
        """This object as the settings of one source: `settings.view(DcgmSettings).dcgm_host`."""
        if not isinstance(self, rows):
            raise TypeError(f"{rows.__name__} is not the settings of any source's plan")
        return self


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class Settings(CoreSettings):
        """The type checker knows a source's settings only through `view`: no list of sources is kept here."""

else:
    # Bases in reverse order: dataclasses lists the fields of the last base first.
    Settings = dataclass(frozen=True, kw_only=True)(
        type("Settings", (*reversed(source_settings()), CoreSettings), {"__module__": __name__})
    )


def home_path(text: str, setting: str) -> Path:
    """Expands `~` in a path. A service may have no home directory; then a path without `~` is needed."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        flag = "--" + setting.replace("_", "-")
        raise UsageError(
            f"{flag}: {text!r} needs a home directory, but user {os.getuid()} has none; set {flag} DIR"
        ) from None


def home_file(text: str, setting: str) -> Path:
    """As `home_path`, for a file that must exist: readers name the file, but not the setting."""
    path = home_path(text, setting)
    try:
        path.stat()
    except FileNotFoundError:
        raise UsageError(f"--{setting.replace('_', '-')} {text}: there is no such file") from None
    except OSError:
        pass  # the reader reports it, with the file's name
    return path


def _settings_files() -> Iterator[Path]:
    for path in SETTINGS_FILES:
        # A system service may run without HOME and without a passwd entry (systemd's DynamicUser), or with a
        # HOME that it has no permission to read.
        with suppress(RuntimeError, PermissionError):
            if path.expanduser().is_file():
                yield path.expanduser()


def setting_rows() -> tuple[Field[Any], ...]:
    return fields(Settings)


def env_name(row: Field[Any]) -> str:
    return ENV_PREFIX + row.name.upper()


def _parse(row: Field[Any], text: str, origin: str) -> Any:
    # A metavar with a digit, such as 30d or 10GiB, is an example value.
    metavar = row.metadata["metavar"]
    example = metavar if any(map(str.isdigit, metavar)) else ""
    return parse_argument(row.metadata["parse"], text, origin, example)


def _file_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class _SettingText:
    """A setting's text and its origin."""

    text: str
    origin: str
    remedy: str = ""
    """What to do if the command does not have this setting."""


def read_settings_file(path: Path, command: str = "") -> dict[str, str]:
    """The file's top-level keys, overridden by those of its table `[command]`."""
    try:
        document = tomllib.loads(read_regular_text(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"settings file {path}: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"settings file {path}: not valid TOML: {error}") from None
    plain = {key: value for key, value in document.items() if not isinstance(value, dict)}
    tables = {name: table for name, table in document.items() if isinstance(table, dict)}
    for key in (*plain, *(key for table in tables.values() for key in table)):
        if key not in Settings.__dataclass_fields__:
            raise UsageError(f"settings file {path}: unknown setting {key!r}; docs/settings.md lists them")
    return {key: _file_text(value) for key, value in {**plain, **tables.get(command, {})}.items()}


def _collect_texts(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None, command: str
) -> dict[str, _SettingText]:
    in_file = read_settings_file(file, command) if file is not None else {}
    texts: dict[str, _SettingText] = {}
    for row in setting_rows():
        if row.name in flags:
            texts[row.name] = _SettingText(flags[row.name], "--" + row.name.replace("_", "-"))
        elif env_name(row) in environment:
            remedy = f"; leave the variable out: `env -u {env_name(row)} gpuscope {command} …`"
            texts[row.name] = _SettingText(environment[env_name(row)], env_name(row), remedy)
        elif row.name in in_file:
            remedy = "; move it into the table of a command that has it, for example [up]"
            texts[row.name] = _SettingText(in_file[row.name], f"settings file {file}: {row.name}", remedy)
    return texts


def load_settings(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file: Path | None = None,
    *,
    command: str = "",
    accepted: Collection[str] | None = None,
) -> Settings:
    """Precedence: flag, environment, file, default. `file` defaults to the first of SETTINGS_FILES that exists.

    Setting something that the command does not have (`accepted`) is an error, because it would have no effect.
    """
    if file is None and environment.get("GPUSCOPE_SETTINGS"):
        file = Path(environment["GPUSCOPE_SETTINGS"])
    if file is None:
        file = next(_settings_files(), None)
    values: dict[str, Any] = {}
    for name, given in _collect_texts(flags, environment, file, command).items():
        if accepted is not None and name not in accepted:
            raise UsageError(f"{given.origin}: `gpuscope {command}` does not have this setting{given.remedy}")
        values[name] = _parse(Settings.__dataclass_fields__[name], given.text, given.origin)
    return Settings(**values)
