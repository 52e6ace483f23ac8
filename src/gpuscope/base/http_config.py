"""Credentials, TLS and proxies for an HTTP client, in the format of Prometheus' configuration.

Sources: a job of the configuration file, a separate file (the format of `promtool --http.config.file`), or a
URL with user and password. Secrets never appear in `repr`.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from gpuscope.base.errors import UsageError
from gpuscope.base.files import MAX_SECRET_BYTES, check_regular_file, read_regular_text

TYPE_CHECKING = False
if TYPE_CHECKING:  # the agent has no such file and must not import YAML
    from gpuscope.base.config_values import ConfigMapping
    from gpuscope.base.http_proxy import ProxyRules
    from gpuscope.base.oauth2 import ClientCredentials

UNUSED = ("enable_http2",)
"""What changes nothing here: we speak HTTP/1.1."""
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
    proxies: ProxyRules | None = None
    """None: as the environment says. Used by `blocking_http`."""
    oauth2: ClientCredentials | None = None

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


def load_http_config(path: Path, *, is_blocking: bool = False) -> HttpConfig:
    """`is_blocking`: for `blocking_http`, which knows proxies and OAuth 2."""
    from gpuscope.base.config_values import ConfigMapping, load_yaml

    warnings: list[str] = []
    table = ConfigMapping(load_yaml(path), str(path), path.parent)
    if is_blocking:
        config = read_sender_config(table)
        table.finish(UNUSED, lambda text: None)
    else:
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


def read_sender_config(table: ConfigMapping) -> HttpConfig:
    """As `read_http_config`, with proxies and OAuth 2: for what is sent by `blocking_http`."""
    http = replace(read_http_config(table), proxies=_proxies(table))
    if not table.has("oauth2"):
        table.raw("oauth2")
        return http
    if any(name.lower() == "authorization" for name, _ in http.headers):
        table.fail("oauth2", "use only one of basic_auth, authorization, bearer_token and oauth2")
    return replace(http, oauth2=_oauth2(table.table("oauth2")))


def _proxies(table: ConfigMapping) -> ProxyRules | None:
    from gpuscope.base.http_proxy import ProxyRules, environment_rules, parse_proxy

    url, exceptions = table.text("proxy_url"), table.text("no_proxy")
    is_given = table.has("proxy_from_environment")
    from_environment = table.switch("proxy_from_environment", False)
    headers = _secret_lists(table, "proxy_connect_header")
    if from_environment and (url or exceptions):
        table.fail("proxy_from_environment", "give it, or proxy_url and no_proxy, not both")
    if exceptions and not url:
        table.fail("no_proxy", "needs proxy_url")
    if headers and not (url or from_environment):
        table.fail("proxy_connect_header", "needs proxy_url or proxy_from_environment")
    if url:
        try:
            parse_proxy(url)
        except NotImplementedError as error:
            table.not_supported("proxy_url", error)
        except ValueError as error:
            table.fail("proxy_url", error)
        return ProxyRules(url, url, exceptions, headers)
    if headers:
        return replace(environment_rules(os.environ), connect_headers=headers)
    return ProxyRules() if is_given and not from_environment else None


def _oauth2(table: ConfigMapping) -> ClientCredentials:
    from gpuscope.base.oauth2 import ClientCredentials

    if table.text("grant_type", "client_credentials") != "client_credentials":
        table.not_supported("grant_type", "only client_credentials is supported")
    tls = table.table("tls_config") if table.has("tls_config") else None
    table.raw("tls_config")
    http = HttpConfig(
        tls=_tls(tls) if tls is not None else None,
        server_name=tls.text("server_name") if tls is not None else "",
        proxies=_proxies(table),
    )
    path, secret = table.file("client_secret_file"), table.text("client_secret")
    if path is not None and secret:
        table.fail("client_secret", "give it or client_secret_file, not both")
    url, http = split_credentials(table.text("token_url"), http, f"{table.location}: token_url")
    credentials = ClientCredentials(
        token_url=url,
        client_id=table.text("client_id"),
        secret=secret,
        secret_file=path,
        scopes=table.strings("scopes"),
        parameters=tuple(table.labels("endpoint_params").items()),
        http=http,
    )
    if not credentials.client_id:
        table.fail("client_id", "must be given")
    table.finish((), lambda text: None)
    return credentials


def _secret_lists(table: ConfigMapping, key: str) -> tuple[tuple[str, str], ...]:
    lists = table.table(key)
    return tuple((name, value) for name in table.raw(key) or {} for value in lists.strings(str(name)))


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
        with _pem_file(table, "cert") as cert, _pem_file(table, "key") as key:
            if cert or key:
                # Without `password` OpenSSL prompts for one on the terminal.
                context.load_cert_chain(
                    _given(table, "cert", cert), _given(table, "key", key), password=lambda: b""
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


@contextmanager
def _pem_file(table: ConfigMapping, key: str) -> Iterator[Path | None]:
    """`cert_file`, or the text of `cert` as a file that only this process has: OpenSSL reads only files."""
    path, text = table.file(f"{key}_file"), table.text(key)
    if path is not None and text:
        table.fail(key, f"give it or {key}_file, not both")
    if not text:
        yield check_regular_file(path) if path is not None else None
        return
    with open(os.memfd_create(key), "w+b") as file:  # noqa: PTH123 - a file without a path
        file.write(text.encode())
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _given(table: ConfigMapping, key: str, path: Path | None) -> Path:
    if path is None:
        table.fail(f"{key}_file", "a certificate and its key must be set together")
    return path


_Apply = Callable[[ssl.SSLContext, ssl.TLSVersion], None]


def _set_minimum(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context.minimum_version = version


def _set_maximum(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context.maximum_version = version
