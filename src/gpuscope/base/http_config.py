"""Credentials and TLS for an HTTP client, in the format of Prometheus' configuration.

Sources: a job of the configuration file, a separate file (the format of `promtool --http.config.file`), or a
URL with user and password. Secrets never appear in `repr`.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from gpuscope.base.errors import UsageError
from gpuscope.base.files import MAX_SECRET_BYTES, check_regular_file, read_regular_text

TYPE_CHECKING = False
if TYPE_CHECKING:  # the agent has no such file and must not import YAML
    from gpuscope.base.config_values import ConfigMapping

UNSUPPORTED = (
    "oauth2", "proxy_url", "no_proxy", "proxy_from_environment", "proxy_connect_header", "enable_http2",
)  # fmt: skip
RESERVED_HEADERS = frozenset((
    "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Length", "Content-Type",
    "Host", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "User-Agent", "Www-Authenticate",
    "X-Amz-Content-Sha256", "X-Amz-Date", "X-Amz-Security-Token", "X-Prometheus-Remote-Read-Version",
    "X-Prometheus-Remote-Write-Version", "X-Prometheus-Scrape-Timeout-Seconds",
))  # fmt: skip
"""Prometheus and Alertmanager refuse them in `http_headers`."""
_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True, slots=True)
class HttpConfig:
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str = ""
    follow_redirects: bool = True

    def with_headers(self, *more: tuple[str, str]) -> HttpConfig:
        return replace(self, headers=(*self.headers, *more))


def basic_header(user: str, password: str) -> tuple[str, str]:
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return ("authorization", f"Basic {token}")


def split_credentials(url: str, http: HttpConfig, origin: str) -> tuple[str, HttpConfig]:
    """Moves `user:password@` from the URL into an Authorization header; checks the URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{origin}: {url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{origin}: {url!r} is not an http:// or https:// URL")
    if parts.username is not None:
        http = http.with_headers(basic_header(unquote(parts.username), unquote(parts.password or "")))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    return urlunsplit(parts._replace(netloc=netloc, fragment="")), http


def load_http_config(path: Path) -> HttpConfig:
    from gpuscope.base.config_values import ConfigMapping, load_yaml

    warnings: list[str] = []
    table = ConfigMapping(load_yaml(path), str(path), path.parent)
    config = read_http_config(table)
    table.finish(UNSUPPORTED, warnings.append)
    if warnings:
        raise UsageError("; ".join(warnings))
    return config


def read_http_config(table: ConfigMapping) -> HttpConfig:
    """Reads the HTTP client's keys; the caller reads the others and calls `finish`."""
    headers = [*_authorization(table), *_plain_headers(table)]
    tls = table.table("tls_config") if table.has("tls_config") else None
    table.raw("tls_config")
    return HttpConfig(
        headers=tuple(headers),
        tls=_tls(tls) if tls is not None else None,
        server_name=tls.text("server_name") if tls is not None else "",
        follow_redirects=table.switch("follow_redirects", True),
    )


def _authorization(table: ConfigMapping) -> list[tuple[str, str]]:
    ways = [key for key in ("basic_auth", "authorization") if table.has(key)]
    bearer = table.secret("bearer_token")
    if len(ways) + (bearer is not None) > 1:
        table.fail("authorization", "use only one of basic_auth, authorization and bearer_token")
    basic, general = table.table("basic_auth"), table.table("authorization")
    user, password = basic.secret("username"), basic.secret("password")
    kind, credentials = general.text("type", "Bearer").strip(), general.secret("credentials")
    for part in (basic, general):
        part.finish((), lambda text: None)
    if kind.lower() == "basic":
        general.fail("type", "for Basic use basic_auth")
    if "basic_auth" in ways:
        return [basic_header(user or "", password or "")]
    if bearer is not None:
        return [("authorization", f"Bearer {bearer}")]
    return [("authorization", f"{kind} {credentials}")] if credentials is not None else []


def _plain_headers(table: ConfigMapping) -> list[tuple[str, str]]:
    """`http_headers` of Prometheus (lists of values) and `headers` of remote_write (one value)."""
    headers = list(table.labels("headers").items())
    http_headers = table.table("http_headers")
    for name in sorted(map(str, table.raw("http_headers") or {})):
        header = http_headers.table(name)
        headers += [(name, value) for value in (*header.strings("values"), *header.strings("secrets"))]
        for path in header.strings("files"):
            try:
                headers.append((name, read_regular_text(table.folder / path, MAX_SECRET_BYTES).strip()))
            except (OSError, UnicodeDecodeError) as error:
                header.fail("files", error)
        header.finish((), lambda text: None)
        if name.title() in RESERVED_HEADERS:
            http_headers.fail(name, "is set by the client itself and cannot be given")
    for name, value in headers:
        if not name.isascii() or not name.replace("-", "").isalnum() or "\n" in value or "\r" in value:
            table.fail("http_headers", f"{name!r} is not a valid header")
    return headers


def _tls(table: ConfigMapping) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        if ca := table.raw("ca"):
            context = ssl.create_default_context(cadata=str(ca))
        if ca_file := table.file("ca_file"):
            context = ssl.create_default_context(cafile=str(check_regular_file(ca_file)))
        if table.has("cert") or table.has("key"):
            table.fail("cert and key", "inline certificates are not supported; use cert_file and key_file")
        cert, key = table.file("cert_file"), table.file("key_file")
        if cert or key:
            # Without `password` OpenSSL prompts for one on the terminal.
            context.load_cert_chain(
                _given(table, "cert_file", cert), _given(table, "key_file", key), password=lambda: b""
            )
    except OSError as error:  # includes ssl.SSLError
        table.fail("ca_file, cert_file or key_file", error)
    for key_name, apply in (("min_version", _set_minimum), ("max_version", _set_maximum)):
        version = table.text(key_name)
        if version:
            if version not in _VERSIONS:
                table.fail(key_name, f"{version!r} is not one of {', '.join(_VERSIONS)}")
            apply(context, _VERSIONS[version])
    table.text("server_name")
    if table.switch("insecure_skip_verify", False):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    table.finish((), lambda text: None)
    return context


def _given(table: ConfigMapping, key: str, path: Path | None) -> Path:
    if path is None:
        table.fail(key, "cert_file and key_file must be set together")
    return check_regular_file(path)


_Apply = Callable[[ssl.SSLContext, ssl.TLSVersion], None]


def _set_minimum(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context.minimum_version = version


def _set_maximum(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context.maximum_version = version
