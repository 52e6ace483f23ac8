"""Real engines for tests: where their programs are, and how to run one for the length of a test.

`engine("prometheus")` gives the program's path, or skips the test naming the engine and the reason;
`tools/get-engines` fetches them, with `--all` also those that are built for minutes (Thanos and Mimir for tests
marked slow, Prometheus 3.14 for tests of what older ones do not have). Each `running_*` gives the base URL of a
fresh engine on a free loopback port with an empty data folder, ready to answer, and stops it whatever happens.
An engine of a major version the tests were not written for is skipped by name: its answers may rightly differ.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

import bcrypt
import pytest

from tests.ports import free_port
from tests.waiting import wait_for

KNOWN_MAJORS = {
    "prometheus": "3",
    "prometheus-3.14": "3",
    "promtool": "3",
    "promtool-3.14": "3",
    "alertmanager": "0",
    "amtool": "0",
    "node_exporter": "1",
    "victoria-metrics": None,  # Debian's build does not say its version
    "docker-compose": "2",
    "thanos": "0",
    "mimir": "3",
}
BUILT = frozenset({"thanos", "mimir", "prometheus-3.14", "promtool-3.14"})
EMPTY_PROMETHEUS = "global: {scrape_interval: 1h}\n"
SILENT_ALERTMANAGER = "route: {receiver: none}\nreceivers: [{name: none}]\n"


def engine(name: str) -> Path:
    """The program `name`, or a skip that says which engine is missing and why."""
    found = find_engine(name)
    if isinstance(found, str):
        pytest.skip(f"{name}: {found}")
    return found


@functools.cache
def find_engine(name: str) -> Path | str:
    """The path, or the reason there is none."""
    major = KNOWN_MAJORS[name]
    path = next((p for p in _candidates(name) if os.access(p, os.X_OK)), None)
    if path is None:
        how = "--all builds it" if name in BUILT else "fetches it"
        return f"not found; tools/get-engines {how}"
    if major is None:
        return path
    version = _version(path)
    if version is None:
        return f"{path} does not say its version"
    if version.split(".")[0] != major:
        return f"{path} is version {version}; these tests know {major}.x"
    return path


def _candidates(name: str) -> Iterator[Path]:
    chosen = os.environ.get("GPUSCOPE_ENGINES")
    if chosen:
        yield Path(chosen).expanduser() / "bin" / name
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    yield cache / "gpuscope" / "engines" / "bin" / name
    on_path = shutil.which(name)
    if on_path:
        yield Path(on_path)


def _version(path: Path) -> str | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.search(r"version v?(\d[^\s,]*)", done.stdout + done.stderr)
    return said.group(1) if said else None


@contextmanager
def running(
    command: Sequence[str | Path],
    ready_url: str | urllib.request.Request,
    cwd: Path | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The process, once `ready_url` answers 200; stopped at the end. Its last words if it never does."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(c) for c in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=cwd
        )
        try:
            _wait_until_ready(
                process,
                lambda: urllib.request.urlopen(ready_url, timeout=5, context=tls),
                lambda: _tail(log.fileno()),
            )
            yield process
        finally:
            stop_process(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], ask: Callable[[], HTTPResponse], last_words: Callable[[], str]
) -> None:
    def is_ready() -> bool:
        assert process.poll() is None, f"{process.args!r} ended:\n{last_words()}"
        try:
            with ask() as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass
        return False

    wait_for(is_ready, f"{process.args!r} to be ready", last_words)


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, 4000, max(0, size - 4000)).decode(errors="replace")


def stop_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running_prometheus(
    config_text: str = EMPTY_PROMETHEUS,
    *,
    flags: Sequence[str] = (),
    data: Path | None = None,
    port: int | None = None,
    prefix: Sequence[str | Path] = (),
    program: Path | None = None,
) -> Iterator[str]:
    """Takes remote write and, given `data`, serves what is there; with `port` it comes back where it was.

    `prefix` is a command that starts it, such as `unshare`; `program` is another one than the usual."""
    program = program or engine("prometheus")
    with tempfile.TemporaryDirectory(prefix="prometheus-") as folder:
        config = Path(folder) / "prometheus.yml"
        config.write_text(config_text)
        address = f"127.0.0.1:{port or free_port()}"
        command: list[str | Path] = [
            *prefix,
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={data or Path(folder) / 'data'}",
            f"--web.listen-address={address}",
            "--web.enable-remote-write-receiver",
            "--web.enable-lifecycle",
            "--web.enable-admin-api",
            "--storage.tsdb.retention.time=100y",
            "--log.level=warn",
            *flags,
        ]
        with running(command, f"http://{address}/-/ready"):
            yield f"http://{address}"


@contextmanager
def running_guarded_prometheus(folder: Path, user: str, password: str) -> Iterator[str]:
    """Over TLS and with a password, by a web config file of its own; `ca.pem` in `folder` vouches for it."""
    program, address = engine("prometheus"), f"127.0.0.1:{free_port()}"
    _make_certificate(folder)
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    (folder / "web.yml").write_text(
        f"tls_server_config: {{cert_file: ca.pem, key_file: key.pem}}\nbasic_auth_users: {{{user}: {hashed}}}\n"
    )
    (folder / "prometheus.yml").write_text(EMPTY_PROMETHEUS)
    command: list[str | Path] = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        f"--web.config.file={folder / 'web.yml'}",
        "--web.enable-remote-write-receiver",
        "--log.level=warn",
    ]
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
    ready = urllib.request.Request(
        f"https://{address}/-/ready", headers={"Authorization": f"Basic {credentials}"}
    )
    with running(command, ready, tls=ssl.create_default_context(cafile=folder / "ca.pem")):
        yield f"https://{address}"


def _make_certificate(folder: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl: not found; it makes the certificate")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=engine "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out ca.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)


@contextmanager
def running_victoria_metrics(
    *, flags: Sequence[str] = (), data: Path | None = None, port: int | None = None
) -> Iterator[str]:
    program = engine("victoria-metrics")
    with tempfile.TemporaryDirectory(prefix="victoria-metrics-") as folder:
        address = f"127.0.0.1:{port or free_port()}"
        command: list[str | Path] = [
            program,
            f"-storageDataPath={data or Path(folder) / 'data'}",
            f"-httpListenAddr={address}",
            "-retentionPeriod=100y",
            "-loggerLevel=WARN",
            *flags,
        ]
        with running(command, f"http://{address}/health"):
            yield f"http://{address}"


@contextmanager
def running_alertmanager(config_text: str = SILENT_ALERTMANAGER, *, flags: Sequence[str] = ()) -> Iterator[str]:
    program = engine("alertmanager")
    with tempfile.TemporaryDirectory(prefix="alertmanager-") as folder:
        config = Path(folder) / "alertmanager.yml"
        config.write_text(config_text)
        address = f"127.0.0.1:{free_port()}"
        command: list[str | Path] = [
            program,
            f"--config.file={config}",
            f"--storage.path={folder}/data",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
            "--log.level=warn",
            *flags,
        ]
        # Debian's build looks for its templates from its working directory: see tools/get-engines.
        with running(command, f"http://{address}/-/ready", cwd=program.parent.parent):
            yield f"http://{address}"


@contextmanager
def running_node_exporter(*, flags: Sequence[str] = ()) -> Iterator[str]:
    program = engine("node_exporter")
    address = f"127.0.0.1:{free_port()}"
    with running([program, f"--web.listen-address={address}", *flags], f"http://{address}/metrics"):
        yield f"http://{address}"


@dataclass(frozen=True, slots=True)
class Shared:
    """An engine that several tenants share: where it is asked and written to, and the header that names one."""

    query: str
    write: str
    tenant_header: str

    def headers(self, tenant: str) -> dict[str, str]:
        return {self.tenant_header: tenant}


@contextmanager
def running_thanos(
    *, flags: Sequence[str] = (), data: Path | None = None, port: int | None = None
) -> Iterator[Shared]:
    """`receive` and `query`: who writes names a tenant, which becomes a label; who asks sees its own only.

    `flags` are those of `receive`; with `data` and `port` it comes back where it was.
    """
    program = engine("thanos")
    store, receive_http, query_http = (f"127.0.0.1:{free_port()}" for _ in range(3))
    write = f"127.0.0.1:{port or free_port()}"
    receive: list[str | Path] = [
        program, "receive", "--log.level=warn", '--label=replica="only"', f"--http-address={receive_http}",
        f"--grpc-address={store}", f"--remote-write.address={write}", "--grpc-grace-period=1s",
        "--http-grace-period=1s", f"--receive.capnproto-address=127.0.0.1:{free_port()}",
        "--tsdb.retention=0d",  # else 0.42 may crash, started in the first minute of every fourth hour
        *flags,
    ]  # fmt: skip
    query: list[str | Path] = [
        program, "query", "--log.level=warn", f"--http-address={query_http}", f"--endpoint={store}",
        f"--grpc-address=127.0.0.1:{free_port()}", "--query.replica-label=replica", "--query.enforce-tenancy",
        "--http-grace-period=1s", "--grpc-grace-period=1s",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="thanos-") as folder, ExitStack() as both:
        receive.append(f"--tsdb.path={data or folder}")
        both.enter_context(running(receive, f"http://{receive_http}/-/ready"))
        both.enter_context(running(query, f"http://{query_http}/-/ready"))
        yield Shared(f"http://{query_http}", f"http://{write}/api/v1/receive", "THANOS-TENANT")


@contextmanager
def running_mimir(
    *,
    data: Path | None = None,
    port: int | None = None,
    tenants: bool = True,
    limits: Mapping[str, float | str] | None = None,
) -> Iterator[Shared]:
    """The whole of it in one process, on local files; every request must name its tenant, if there are such."""
    program = engine("mimir")
    with tempfile.TemporaryDirectory(prefix="mimir-") as folder:
        http, grpc = port or free_port(), free_port()
        config = Path(folder) / "mimir.yaml"
        settings = {**_mimir_config(str(data or folder), http, grpc), "multitenancy_enabled": tenants}
        if limits is not None:
            settings["limits"] = limits
        config.write_text(json.dumps(settings))  # JSON is YAML too
        base = f"http://127.0.0.1:{http}"
        with running([program, f"-config.file={config}"], f"{base}/ready", cwd=Path(folder)):
            yield Shared(f"{base}/prometheus", f"{base}/api/v1/push", "X-Scope-OrgID")


def _mimir_config(folder: str, http: int, grpc: int) -> dict[str, object]:
    ring = {"instance_addr": "127.0.0.1", "kvstore": {"store": "inmemory"}}
    alone = {**ring, "replication_factor": 1}
    return {
        "target": "all",
        "usage_stats": {"enabled": False},
        "activity_tracker": {"filepath": ""},
        "server": {
            "http_listen_address": "127.0.0.1",
            "http_listen_port": http,
            "grpc_listen_address": "127.0.0.1",
            "grpc_listen_port": grpc,
            "log_level": "warn",
        },
        "common": {"storage": {"backend": "filesystem", "filesystem": {"dir": f"{folder}/common"}}},
        "blocks_storage": {
            "storage_prefix": "blocks",
            "tsdb": {"dir": f"{folder}/tsdb"},
            "bucket_store": {"sync_dir": f"{folder}/sync"},
        },
        "distributor": {"ring": ring},
        "ingester": {"ring": {**alone, "min_ready_duration": "0s", "final_sleep": "0s"}},
        "store_gateway": {"sharding_ring": alone},
        "compactor": {"data_dir": f"{folder}/compactor", "sharding_ring": ring},
        "ruler": {"rule_path": f"{folder}/rules", "ring": ring},
        "ruler_storage": {"storage_prefix": "ruler"},
        "frontend": {"address": "127.0.0.1"},
        "query_scheduler": {"ring": ring},
        "querier": {"ring": ring},
    }
