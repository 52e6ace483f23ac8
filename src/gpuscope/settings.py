"""Every setting of the program: one table, read from flag, then environment, then file, then default.

A field of `Settings` is a row: its name is the flag (`--demo-gpus`), the environment variable
(`GPUSCOPE_DEMO_GPUS`) and the key of the TOML file (`demo_gpus`); its metadata says how a text becomes a
value and who would change it. The rows of a source are in its own `plan.py`. A wrong value is one sentence that
names the value and where it came from.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuscope.errors import UsageError
from gpuscope.limits import Limits
from gpuscope.setting_values import (
    one_of,
    parse_bytes,
    parse_count,
    parse_counts,
    parse_duration,
    parse_interval,
    parse_listen,
    parse_positive_duration,
    parse_switch,
    parse_words,
)
from gpuscope.setting_values import setting as _setting
from gpuscope.source_plan import selectable_sources, source_settings

T = TypeVar("T")
ENV_PREFIX = "GPUSCOPE_"
DEFAULT_DATA = "~/.local/share/gpuscope"
DEMO_DATA = "~/.local/share/gpuscope-demo"
"""The default of `up --demo`: simulated history never shares a folder with real history."""
SETTINGS_FILES = (Path("~/.config/gpuscope/gpuscope.toml"), Path("/etc/gpuscope/gpuscope.toml"))


# Without the generated methods, which `Settings` has: those of a hundred fields cost memory.
@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class CoreSettings(Limits):
    """Every setting but those of the sources, which each source's `plan.py` has."""

    source: str = _setting(
        "auto",
        one_of("auto", *selectable_sources()),
        "where GPU numbers come from; auto takes every source that answers",
        "NAME",
    )
    stand_in: tuple[str, ...] = _setting(
        (), parse_words, "exporters to stand in for, each on its own port", "NAME"
    )
    families: tuple[str, ...] = _setting(
        (), parse_words, "metric families to serve instead of the default ones", "A,B"
    )
    listen: tuple[str, int] | None = _setting(
        None, parse_listen, "address to serve on (agent :9400, up and server 127.0.0.1:9470)", "HOST:PORT"
    )
    interval: float = _setting(1.0, parse_interval, "how often the fast numbers are read", "1s")
    counters: str = _setting("", str, "dcgm-exporter CSV file that lists the dcgm family's metrics", "FILE.csv")
    fields: tuple[str, ...] = _setting(
        (), parse_words, "DCGM field ids to add to the dcgm_legacy family, by id: +191,+51", "+ID,+ID"
    )
    node: str = _setting(
        "", str, "this machine's name in the metrics (default: $NODE_NAME or the host name)", "NAME"
    )
    expected_gpus: int | None = _setting(
        None, parse_count, "how many GPUs this machine should have, if the PCI bus cannot tell", "N"
    )
    path_procfs: str = _setting(
        "/proc", str, "where the machine's procfs is mounted: in a container it may be /host/proc", "DIR"
    )
    path_sysfs: str = _setting(
        "/sys", str, "where the machine's sysfs is mounted: in a container it may be /host/sys", "DIR"
    )
    path_rootfs: str = _setting(
        "/", str, "where the machine's root is mounted: in a container it may be /host/root", "DIR"
    )
    web_config_file: str = _setting(
        "", str, "exporter-toolkit file with TLS and passwords for the HTTP listener", "FILE"
    )
    full_commands: bool = _setting(False, parse_switch, "export whole command lines of GPU processes")
    idle_after: float = _setting(
        60.0, parse_duration, "when a process without SM activity counts as idle", "60s"
    )
    kubelet_socket: str = _setting(
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        str,
        "the kubelet's pod-resources socket: whom the GPUs of this node were given to",
        "SOCKET",
    )
    pods_socket: str = _setting(
        "/var/lib/kubelet/pods-api/pods-api.sock",
        str,
        "the kubelet's socket that lists this node's pods (Kubernetes 1.36 and newer)",
        "SOCKET",
    )
    path_pod_logs: str = _setting(
        "/var/log/pods", str, "the kubelet's log folder: its names say which pod a UID is", "DIR"
    )
    kubelet_url: str = _setting(
        "", str, "ask the kubelet for the node's pods over HTTPS; needs `nodes/pods`", "https://HOST:10250"
    )
    kubelet_insecure: bool = _setting(
        False,
        parse_switch,
        "skip TLS verification of the kubelet at --kubelet-url; the token is sent all the same",
    )
    kubernetes_api: bool = _setting(
        False, parse_switch, "ask the API server for the node's pods; needs `pods` list"
    )
    kubelet_interval: float = _setting(5.0, parse_interval, "how often the kubelet is asked", "5s")
    pod_labels: tuple[str, ...] = _setting(
        (), parse_words, "pod labels to keep with a process' owner, by name; * takes all", "A,B"
    )
    resource_names: tuple[str, ...] = _setting(
        (), parse_words, "device plugin resources that are GPUs, besides nvidia.com/* and amd.com/gpu", "A,B"
    )
    container_sockets: tuple[str, ...] = _setting(
        (), parse_words, "Docker or Podman sockets to ask for containers' names and images", "SOCKET"
    )
    cri_sockets: tuple[str, ...] = _setting(
        (),
        parse_words,
        "containerd or CRI-O sockets to ask for containers' names and images; auto: where they usually are",
        "SOCKET|auto",
    )
    job_map_dir: str = _setting("", str, "folder in which a Slurm prolog notes the job of each GPU", "DIR")
    state_dir: str = _setting(
        "",
        str,
        "folder that remembers counted XIDs over a restart (default: $STATE_DIRECTORY, else none)",
        "DIR",
    )
    log_level: str = _setting(
        "info", one_of("debug", "info", "warning", "error"), "how much to log on standard error", "LEVEL"
    )

    data: str = _setting(
        DEFAULT_DATA,
        str,
        "folder that keeps the history, of one process at a time; a demo has ~/.local/share/gpuscope-demo",
        "DIR",
    )
    store_interval: float = _setting(5.0, parse_interval, "how often this machine's numbers are stored", "5s")
    retention: float = _setting(30 * 86400.0, parse_duration, "how long history is kept", "30d")
    retention_bytes: int | None = _setting(
        None,
        parse_bytes,
        "how large the data folder may grow on the disk before the oldest history goes",
        "10GiB",
    )

    query_lookback: float = _setting(
        300.0,
        parse_positive_duration,
        "how old the newest sample of a series may be for a query to see it",
        "5m",
    )
    admin_api: bool = _setting(
        False, parse_switch, "let POST /api/v1/admin/tsdb/… delete series and copy the history to a folder"
    )

    login: str = _setting(
        "auto",
        one_of("auto", "always"),
        "auto: nobody logs in while --listen is a loopback address, else everybody, from this machine too; "
        "always: everybody",
        "WHEN",
    )
    session_lifetime: float = _setting(7 * 86400.0, parse_duration, "how long a login in the page lasts", "7d")
    allowed_hosts: tuple[str, ...] = _setting(
        (), parse_words, "names this server is reached by, besides its own: a.example, *.b.example, or *", "A,B"
    )
    proxy_auth_header: str = _setting(
        "", str, "header in which a reverse proxy says who has logged in there, e.g. X-Forwarded-User", "HEADER"
    )
    proxy_auth_from: tuple[str, ...] = _setting(
        (), parse_words, "addresses of the reverse proxy whose forwarded headers are believed", "CIDR,…"
    )

    config: str = _setting("", str, "Prometheus' configuration file that says what to scrape", "FILE")
    targets: str = _setting(
        "", str, "what to scrape without a configuration file: addresses, or a file of them", "FILE|HOST:PORT,…"
    )
    scrape_interval: float = _setting(15.0, parse_interval, "how often --targets are scraped", "15s")
    store: str = _setting(
        "", str, "Prometheus, VictoriaMetrics, Thanos or Mimir to ask instead of keeping history here", "URL"
    )
    store_tenant: str = _setting(
        "", str, "tenant of a shared --store, sent as X-Scope-OrgID and as THANOS-TENANT", "NAME"
    )
    store_http_config: str = _setting(
        "", str, "file with credentials and TLS for --store, as promtool's --http.config.file", "FILE"
    )
    remote_write: tuple[str, ...] = _setting(
        (), parse_words, "where to send samples as well, by Prometheus' remote write", "URL,…"
    )
    remote_write_http_config: str = _setting(
        "", str, "file with credentials and TLS for --remote-write, as promtool's --http.config.file", "FILE"
    )
    remote_write_interval: float = _setting(15.0, parse_interval, "how often an agent sends its numbers", "15s")

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
    external_url: str = _setting(
        "", str, "address of this server in links of alerts (default: http://HOSTNAME:PORT)", "URL"
    )

    dcgm_interval: float | None = _setting(
        None,
        parse_interval,
        "how often --dcgm-fields are read, where that is more often than usual; dcgm-exporter's -c sets it",
        "30s",
    )
    dcgm_fields: tuple[int, ...] = _setting(
        (),
        parse_counts,
        "DCGM field ids to read every --dcgm-interval; --as dcgm-exporter takes those of its counters file",
        "ID,ID",
    )
    dcgm_hostname_label: str = _setting(
        "Hostname",
        one_of("Hostname", "hostname"),
        "how the dcgm family spells it: dcgm-exporter after 4.8.2 writes hostname, all before write Hostname",
        "LABEL",
    )

    demo_nodes: int | None = _setting(None, parse_count, "how many simulated nodes", "N")

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
    """A path in which `~` is the home directory; without `~` none is needed, and a service may have none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        flag = "--" + setting.replace("_", "-")
        raise UsageError(
            f"{flag}: {text!r} needs a home directory, and user {os.getuid()} has none here; give {flag} DIR"
        ) from None


def _settings_files() -> Iterator[Path]:
    for path in SETTINGS_FILES:
        # A system service may run without HOME and without a passwd entry (systemd's DynamicUser), or with the
        # HOME of somebody whose folder it may not enter.
        with suppress(RuntimeError, PermissionError):
            if path.expanduser().is_file():
                yield path.expanduser()


def setting_rows() -> tuple[Field[Any], ...]:
    return fields(Settings)


def env_name(row: Field[Any]) -> str:
    return ENV_PREFIX + row.name.upper()


def _parse(row: Field[Any], text: str, origin: str) -> Any:
    try:
        return row.metadata["parse"](text)
    except ValueError as error:
        # A metavar with a digit in it is an example of its own kind: 30d, 10GiB.
        metavar = row.metadata["metavar"]
        example = f"; for example {metavar}" if any(map(str.isdigit, metavar)) else ""
        raise UsageError(f"{origin}: {text!r} is {error}{example}") from None


def _file_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class _Given:
    """A setting's text and where it was given."""

    text: str
    origin: str
    remedy: str = ""
    """How to take it back from a command that does not have this setting."""


def read_settings_file(path: Path, command: str = "") -> dict[str, str]:
    """The file's own keys, and those of its table `[command]`, which win."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"settings file {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"settings file {path}: not valid TOML: {error}") from None
    plain = {key: value for key, value in document.items() if not isinstance(value, dict)}
    tables = {name: table for name, table in document.items() if isinstance(table, dict)}
    for key in (*plain, *(key for table in tables.values() for key in table)):
        if key not in Settings.__dataclass_fields__:
            raise UsageError(f"settings file {path}: unknown setting {key!r}; docs/settings.md lists them")
    return {key: _file_text(value) for key, value in {**plain, **tables.get(command, {})}.items()}


def _given(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None, command: str
) -> dict[str, _Given]:
    in_file = read_settings_file(file, command) if file is not None else {}
    found: dict[str, _Given] = {}
    for row in setting_rows():
        if row.name in flags:
            found[row.name] = _Given(flags[row.name], "--" + row.name.replace("_", "-"))
        elif env_name(row) in environment:
            found[row.name] = _Given(environment[env_name(row)], env_name(row))
        elif row.name in in_file:
            remedy = "; move it into the table of a command that does, for example [up]"
            found[row.name] = _Given(in_file[row.name], f"settings file {file}: {row.name}", remedy)
    return found


def load_settings(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file: Path | None = None,
    *,
    command: str = "",
    taken: Collection[str] | None = None,
) -> Settings:
    """Flag > environment > file > default. `file` is the one asked for; else the first of SETTINGS_FILES.

    A setting that is given but not among those `taken` by the command would have no effect: that is an error.
    """
    if file is None and environment.get("GPUSCOPE_SETTINGS"):
        file = Path(environment["GPUSCOPE_SETTINGS"])
    if file is None:
        file = next(_settings_files(), None)
    values: dict[str, Any] = {}
    for name, given in _given(flags, environment, file, command).items():
        if taken is not None and name not in taken:
            raise UsageError(f"{given.origin}: `gpuscope {command}` does not take this setting{given.remedy}")
        values[name] = _parse(Settings.__dataclass_fields__[name], given.text, given.origin)
    return Settings(**values)
