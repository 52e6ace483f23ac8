"""The table of all settings. Precedence: flag, environment, file, default.

A field of `Settings` is a row. Its name defines the flag (`--demo-gpus`), the environment variable
(`GPUSCOPE_DEMO_GPUS`) and the key in the TOML file (`demo_gpus`); its metadata has the parser and the help
text. A wrong value raises UsageError with the value and its origin.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

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

T = TypeVar("T")
ENV_PREFIX = "GPUSCOPE_"
DEFAULT_DATA = "~/.local/share/gpuscope"
DEMO_DATA = "~/.local/share/gpuscope-demo"
"""The default of `up --demo`: simulated and real history never share a folder."""
SETTINGS_FILES = (Path("~/.config/gpuscope/gpuscope.toml"), Path("/etc/gpuscope/gpuscope.toml"))


def _setting(default: T, parse: Callable[[str], Any], help_text: str, metavar: str = "") -> T:
    # The return type is wrong on purpose, as in dataclasses.field(): only the class body sees the Field.
    row: T = field(default=default, metadata={"parse": parse, "help": help_text, "metavar": metavar})
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Limits):
    source: str = _setting(
        "auto",
        one_of("auto", "nvml", "nvidia-smi", "dcgm", "demo"),
        "sources of GPU readings; auto uses every source that works",
        "NAME",
    )
    stand_in: tuple[str, ...] = _setting((), parse_words, "exporters to replace, each on its own port", "NAME")
    families: tuple[str, ...] = _setting(
        (), parse_words, "metric families to serve instead of the defaults", "A,B"
    )
    listen: tuple[str, int] | None = _setting(
        None, parse_listen, "address to listen on (agent :9400, up and server 127.0.0.1:9470)", "HOST:PORT"
    )
    interval: float = _setting(1.0, parse_interval, "interval at which the fast numbers are read", "1s")
    counters: str = _setting("", str, "dcgm-exporter CSV file that lists the dcgm family's metrics", "FILE.csv")
    fields: tuple[str, ...] = _setting(
        (), parse_words, "DCGM field ids to add to the dcgm_legacy family, by id: +191,+51", "+ID,+ID"
    )
    node: str = _setting(
        "", str, "name of this machine in the metrics (default: $NODE_NAME or the host name)", "NAME"
    )
    expected_gpus: int | None = _setting(
        None, parse_count, "number of GPUs this machine should have, if the PCI bus cannot be read", "N"
    )
    path_procfs: str = _setting(
        "/proc", str, "mount point of the machine's procfs; in a container for example /host/proc", "DIR"
    )
    path_sysfs: str = _setting(
        "/sys", str, "mount point of the machine's sysfs; in a container for example /host/sys", "DIR"
    )
    path_rootfs: str = _setting(
        "/", str, "mount point of the machine's root; in a container for example /host/root", "DIR"
    )
    web_config_file: str = _setting(
        "", str, "exporter-toolkit file with TLS and passwords for the HTTP listener", "FILE"
    )
    full_commands: bool = _setting(False, parse_switch, "export the full command lines of GPU processes")
    idle_after: float = _setting(
        60.0, parse_duration, "time without SM activity after which a process counts as idle", "60s"
    )
    kubelet_socket: str = _setting(
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        str,
        "the kubelet's pod-resources socket, which lists the pods that GPUs are allocated to",
        "SOCKET",
    )
    pods_socket: str = _setting(
        "/var/lib/kubelet/pods-api/pods-api.sock",
        str,
        "the kubelet's socket that lists this node's pods (Kubernetes 1.36 and newer)",
        "SOCKET",
    )
    path_pod_logs: str = _setting(
        "/var/log/pods", str, "the kubelet's log folder, whose file names contain pod names and UIDs", "DIR"
    )
    kubelet_url: str = _setting(
        "", str, "list the node's pods through the kubelet over HTTPS; needs `nodes/pods`", "https://HOST:10250"
    )
    kubelet_insecure: bool = _setting(
        False,
        parse_switch,
        "skip TLS verification of the kubelet at --kubelet-url; the token is still sent",
    )
    kubernetes_api: bool = _setting(
        False, parse_switch, "list the node's pods through the API server; needs `list` on `pods`"
    )
    kubelet_interval: float = _setting(5.0, parse_interval, "interval of requests to the kubelet", "5s")
    pod_labels: tuple[str, ...] = _setting(
        (), parse_words, "pod labels to keep with a process' owner, by name; * takes all", "A,B"
    )
    resource_names: tuple[str, ...] = _setting(
        (), parse_words, "device plugin resources that are GPUs, besides nvidia.com/* and amd.com/gpu", "A,B"
    )
    container_sockets: tuple[str, ...] = _setting(
        (), parse_words, "Docker or Podman sockets for the names and images of containers", "SOCKET"
    )
    cri_sockets: tuple[str, ...] = _setting(
        (),
        parse_words,
        "containerd or CRI-O sockets for the names and images of containers; auto: the usual paths",
        "SOCKET|auto",
    )
    job_map_dir: str = _setting("", str, "folder in which a Slurm prolog notes the job of each GPU", "DIR")
    state_dir: str = _setting(
        "",
        str,
        "folder for the counted XIDs, which must survive a restart (default: $STATE_DIRECTORY, else none)",
        "DIR",
    )
    log_level: str = _setting(
        "info", one_of("debug", "info", "warning", "error"), "how much to log on standard error", "LEVEL"
    )

    data: str = _setting(
        DEFAULT_DATA,
        str,
        "folder of the history, used by one process at a time; default of a demo: ~/.local/share/gpuscope-demo",
        "DIR",
    )
    store_interval: float = _setting(5.0, parse_interval, "interval at which local samples are stored", "5s")
    retention: float = _setting(30 * 86400.0, parse_duration, "how long history is kept", "30d")
    retention_bytes: int | None = _setting(
        None,
        parse_bytes,
        "size of the data folder above which the oldest history is deleted",
        "10GiB",
    )

    query_lookback: float = _setting(
        300.0,
        parse_positive_duration,
        "maximum age of a series' newest sample in a query",
        "5m",
    )
    admin_api: bool = _setting(
        False, parse_switch, "enable POST /api/v1/admin/tsdb/…, which deletes series and takes snapshots"
    )

    login: str = _setting(
        "auto",
        one_of("auto", "always"),
        "auto: login is required unless --listen is a loopback address, also from this machine; "
        "always: login is required",
        "WHEN",
    )
    session_lifetime: float = _setting(7 * 86400.0, parse_duration, "how long a login on the page lasts", "7d")
    allowed_hosts: tuple[str, ...] = _setting(
        (), parse_words, "further host names of this server: a.example, *.b.example, or *", "A,B"
    )
    proxy_auth_header: str = _setting(
        "", str, "header with the user that a reverse proxy has authenticated, e.g. X-Forwarded-User", "HEADER"
    )
    proxy_auth_from: tuple[str, ...] = _setting(
        (), parse_words, "addresses of reverse proxies whose forwarded headers are trusted", "CIDR,…"
    )

    config: str = _setting("", str, "Prometheus configuration file with the targets to scrape", "FILE")
    targets: str = _setting(
        "",
        str,
        "targets to scrape without a configuration file: addresses, or a file of them",
        "FILE|HOST:PORT,…",
    )
    scrape_interval: float = _setting(15.0, parse_interval, "interval at which --targets are scraped", "15s")
    store: str = _setting(
        "", str, "Prometheus, VictoriaMetrics, Thanos or Mimir to query instead of a local history", "URL"
    )
    store_tenant: str = _setting(
        "", str, "tenant of a shared --store, sent as X-Scope-OrgID and as THANOS-TENANT", "NAME"
    )
    store_http_config: str = _setting(
        "", str, "file with credentials and TLS for --store, as promtool's --http.config.file", "FILE"
    )
    remote_write: tuple[str, ...] = _setting(
        (), parse_words, "remote-write endpoints that also receive the samples", "URL,…"
    )
    remote_write_http_config: str = _setting(
        "", str, "file with credentials and TLS for --remote-write, as promtool's --http.config.file", "FILE"
    )
    remote_write_interval: float = _setting(15.0, parse_interval, "interval of an agent's remote write", "15s")

    nvidia_smi_command: str = _setting(
        "nvidia-smi", str, "how to run nvidia-smi: ssh, sudo or docker exec may stand in front", "COMMAND"
    )
    nvidia_smi_interval: float = _setting(5.0, parse_interval, "how often nvidia-smi is run", "5s")
    nvidia_smi_timeout: float = _setting(10.0, parse_duration, "when a run of nvidia-smi is killed", "10s")
    dcgmi_command: str = _setting("dcgmi", str, "how to run dcgmi", "COMMAND")
    dcgm_host: str = _setting("", str, "DCGM host engine to ask (default: dcgmi's own)", "HOST:PORT")

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

    scenario: tuple[str, ...] = _setting(
        (),
        parse_words,
        "what happens in the simulated fleet: NAME or NAME@+2m, several with commas or repeated",
        "NAME",
    )
    seed: int = _setting(1, parse_count, "which simulated fleet: the same seed gives the same numbers", "N")
    demo_nodes: int | None = _setting(None, parse_count, "how many simulated nodes", "N")
    demo_gpus: int = _setting(8, parse_count, "how many simulated GPUs a node", "N")
    demo_model: str = _setting("", str, "model of the simulated GPUs (default: a mixed fleet)", "MODEL")

    def node_name(self) -> str:
        return self.node or os.environ.get("NODE_NAME", "") or socket.gethostname()


def home_path(text: str, setting: str) -> Path:
    """Expands `~`. A path without `~` needs no home directory: a service may have none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        flag = "--" + setting.replace("_", "-")
        raise UsageError(
            f"{flag}: {text!r} needs a home directory, which user {os.getuid()} does not have; set {flag} DIR"
        ) from None


def _settings_files() -> Iterator[Path]:
    for path in SETTINGS_FILES:
        # A system service may have neither HOME nor a passwd entry (systemd's DynamicUser), or the HOME of a
        # user whose folder it may not enter.
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
        # A metavar with a digit is an example value: 30d, 10GiB.
        metavar = row.metadata["metavar"]
        example = f"; for example {metavar}" if any(map(str.isdigit, metavar)) else ""
        raise UsageError(f"{origin}: {text!r} is {error}{example}") from None


def _file_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class _Given:
    """A setting's text and its origin."""

    text: str
    origin: str
    remedy: str = ""
    """How to remove it for a command that does not have this setting."""


def read_settings_file(path: Path, command: str = "") -> dict[str, str]:
    """The file's top-level keys, overridden by those of its table `[command]`."""
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
    """Flag > environment > file > default. Without `file`, the first existing one of SETTINGS_FILES is read.

    A setting that is not in `taken`, the command's settings, would have no effect: that is an error.
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
