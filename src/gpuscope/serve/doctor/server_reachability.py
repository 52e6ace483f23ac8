"""`doctor --server URL`: why a server cannot be reached or used from here, step by step, with the fix.

Distinguishes: the name does not resolve, nothing listens, a firewall filters, TLS fails or is missing, another
service listens, a login is needed. Stops at the first problem. A server that answers is also checked for data
(`stored_data.py`). This machine's GPUs are not checked.
"""

from __future__ import annotations

import base64
import errno
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from gpuscope.base.blocking_http import BlockingHttp, Headers, HttpAddress, HttpResponse
from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import MAX_PORT
from gpuscope.model.doctor_check import Check, CheckResult, Verdict
from gpuscope.serve.doctor.server_alerts import Series, check_alerts, check_stored_data
from gpuscope.serve.render.ports import SERVER_PORT, listener_on

CHECKS: tuple[Check, ...] = ()
"""None about this machine."""
ANSWER_SECONDS: Final = 5.0
MAX_BODY_BYTES: Final = 4 << 20
MAX_SHOWN_CHARACTERS: Final = 120
OUR_PATHS: Final = b"/-/healthy, /-/ready, /metrics"
"""In an agent's answer to an unknown path; while it is not ready, nothing else says what it is."""
TEST_QUERY: Final = "/api/v1/query?query=" + quote("vector(1)")


@dataclass(frozen=True, slots=True)
class ServerUrl:
    host: str
    port: int
    is_tls: bool
    path: str = ""
    """A prefix, without a slash at the end."""
    headers: Headers = ()
    """Credentials."""

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


class Problem(Exception):
    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.result = CheckResult(Verdict.BAD, what, fix)


def parse_server_url(text: str, token: str = "") -> ServerUrl:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--server: {text!r} is not a URL; for example http://server:{SERVER_PORT}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UsageError(f"--server: the port of {text!r} is not a number from 1 to {MAX_PORT}")
    headers: list[tuple[str, str]] = []
    if token:
        headers.append(("authorization", f"Bearer {token}"))
    elif parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers.append(("authorization", "Basic " + base64.b64encode(pair.encode()).decode()))
    is_tls = parts.scheme == "https"
    return ServerUrl(
        parts.hostname, port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/"), tuple(headers)
    )


def check_server(url: ServerUrl, *, seconds: float = ANSWER_SECONDS) -> Iterator[CheckResult]:
    try:
        addresses = _resolve(url)
        yield CheckResult(Verdict.GOOD, f"{url.host} resolves to {', '.join(addresses)}")
        _connect(url, seconds)
        yield CheckResult(Verdict.GOOD, f"{url.place} accepts connections")
        ready = _get(url, "/-/ready", seconds)
        name = _identify(url, ready, seconds)
        yield CheckResult(Verdict.GOOD, f"{url.place} is {name}")
        yield _readiness(ready)
        _query(url, name, seconds)
        yield CheckResult(Verdict.GOOD, f"{name} answers PromQL queries from here")
        yield from check_alerts(lambda path: _get_json(url, path, seconds))
    except Problem as problem:
        yield problem.result


def check_data(url: ServerUrl, *, seconds: float = ANSWER_SECONDS) -> Iterator[CheckResult]:
    """Whether a server that passed `check_server` has the data that dashboards show."""
    try:
        yield from check_stored_data(lambda query: _run_query(url, query, seconds))
    except Problem as problem:
        yield problem.result


def _resolve(url: ServerUrl) -> list[str]:
    try:
        found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            fix = "check /etc/resolv.conf and that the DNS server is reachable"
            raise Problem(f"the name {url.host} cannot be resolved now: no DNS server answers", fix) from None
        fix = f"add `ADDRESS {url.host}` to /etc/hosts on this machine, or use the server's address"
        raise Problem(f"the name {url.host} does not resolve", fix) from None
    return list(dict.fromkeys(str(row[4][0]) for row in found))


def _connect(url: ServerUrl, seconds: float) -> None:
    try:
        socket.create_connection((url.host, url.port), seconds).close()
    except ConnectionRefusedError:
        usual = listener_on(url.port)
        fix = (
            f"on {url.host}, `ss -ltn 'sport = :{url.port}'` shows what listens; start it (systemctl status "
            f"'gpuscope-*'), and let it listen on more than the loopback address: --listen :{url.port}"
        )
        expected = f" (usually {usual})" if usual else ""
        raise Problem(f"{url.place} refuses connections: nothing listens there{expected}", fix) from None
    except OSError as error:
        if not isinstance(error, TimeoutError) and error.errno not in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            raise Problem(f"{url.place}: {error.strerror}", "check the address") from None
        how = f"does not answer within {seconds:g} s" if isinstance(error, TimeoutError) else "is not reachable"
        fix = (
            f"on {url.host}: sudo ufw allow proto tcp from THIS-MACHINE to any port {url.port} (firewalld, "
            "GCE: gpuscope render firewall); if `ping` fails too, the machine is off or the route is missing"
        )
        raise Problem(f"{url.place} {how}: a firewall filters it, or the machine is off", fix) from None


def _get(url: ServerUrl, path: str, seconds: float) -> HttpResponse:
    tls = ssl.create_default_context() if url.is_tls else None
    address = HttpAddress(url.host, url.port, tls=tls, host_header=_host_header(url))
    try:
        with BlockingHttp(address, timeout_seconds=seconds, max_body_bytes=MAX_BODY_BYTES) as http:
            response = http.request("GET", url.path + path, url.headers)
    except ssl.SSLCertVerificationError as error:
        raise _certificate_problem(url, error) from None
    except ssl.SSLError as error:
        if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER_FAILURE" in str(error):
            fix = f"use http://{url.place}{url.path}, or give the server a certificate: docs/security.md"
            raise Problem(f"{url.place} does not speak TLS", fix) from None
        fix = f"`openssl s_client -connect {url.place}` shows the details; a client certificate may be required"
        raise Problem(f"TLS with {url.place} fails: {error.reason or error}", fix) from None
    except TimeoutError:
        fix = "look at the server's log and load; a proxy between may hold the answer back"
        raise Problem(f"{url.place} accepts connections but does not answer in {seconds:g} s", fix) from None
    except OSError as error:
        if not url.is_tls and _speaks_tls(url, seconds):
            raise _needs_https(url) from None
        fix = f"{listener_on(url.port) or 'another service'} may use this port; gpuscope's is {SERVER_PORT}"
        raise Problem(f"{url.place} is not an HTTP server: {error}", fix) from None
    # Go's servers answer plain HTTP on a TLS port with this status.
    if response.status == HTTPStatus.BAD_REQUEST and not url.is_tls and _speaks_tls(url, seconds):
        raise _needs_https(url)
    return response


def _host_header(url: ServerUrl) -> str:
    host = f"[{url.host}]" if ":" in url.host else url.host
    return host if url.port == (443 if url.is_tls else 80) else f"{host}:{url.port}"


def _certificate_problem(url: ServerUrl, error: ssl.SSLCertVerificationError) -> Problem:
    what = f"the certificate of {url.place} is not accepted: {error.verify_message}"
    if "expired" in error.verify_message:
        fix = "renew the certificate on the server, and check the clocks of both machines"
    elif "match" in error.verify_message:
        fix = f"use a name that the certificate has, or make one with subjectAltName {url.host}"
    else:
        fix = "give its issuer's certificate: SSL_CERT_FILE=ca.pem gpuscope doctor --server …"
    return Problem(what, fix)


def _needs_https(url: ServerUrl) -> Problem:
    return Problem(f"{url.place} speaks TLS", f"use https://{url.place}{url.path}")


def _speaks_tls(url: ServerUrl, seconds: float) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only whether there is a handshake; no credentials are sent
    try:
        with (
            socket.create_connection((url.host, url.port), seconds) as plain,
            context.wrap_socket(plain, server_hostname=url.host),
        ):
            return True
    except OSError:
        return False


def _identify(url: ServerUrl, ready: HttpResponse, seconds: float) -> str:
    """What serves this address; raises Problem if it has no PromQL API."""
    text = ready.body[:MAX_SHOWN_CHARACTERS].decode("utf-8", "replace").lower()
    if ready.status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT):
        fix = "start the server behind the proxy, or correct the proxy's address of it"
        raise Problem(f"a proxy at {url.place} cannot reach the server behind it ({ready.status})", fix)
    if ready.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise _login_problem(url, ready)
    if 300 <= ready.status < 400:
        target = ready.header("location")[:MAX_SHOWN_CHARACTERS]
        fix = f"use the address it redirects to, or log in at the proxy: {target}"
        raise Problem(f"{url.place} redirects to {target}", fix)
    query = _get(url, TEST_QUERY, seconds)
    if query.header("content-type").startswith("application/json"):
        known = {"gpuscope": "a gpuscope server", "prometheus": "a Prometheus"}
        return next((name for word, name in known.items() if word in text), "a server with Prometheus' API")
    if "gpuscope" in text or OUR_PATHS in query.body:
        raise _exporter_problem(url, "a gpuscope agent")
    metrics = _get(url, "/metrics", seconds)
    if metrics.status == HTTPStatus.OK and b"# TYPE " in metrics.body:
        raise _exporter_problem(url, f"an exporter ({listener_on(url.port) or 'of another program'})")
    fix = (
        f"on {url.host}, `ss -ltnp 'sport = :{url.port}'` shows which program it is; gpuscope's server is "
        f"on port {SERVER_PORT} unless --listen says otherwise"
    )
    raise Problem(f"{url.place} is another service: it answers {ready.status} to /-/ready", fix)


def _exporter_problem(url: ServerUrl, name: str) -> Problem:
    fix = f"scrape it (gpuscope server --targets {url.place}); pages and queries are on port {SERVER_PORT}"
    return Problem(f"{url.place} is {name}: it has metrics but answers no queries", fix)


def _readiness(ready: HttpResponse) -> CheckResult:
    if ready.status == HTTPStatus.OK:
        return CheckResult(Verdict.GOOD, "it is ready")
    text = ready.body[:MAX_SHOWN_CHARACTERS].decode("utf-8", "replace").strip()
    return CheckResult(Verdict.NOTE, f"it is not ready: {text or ready.status}")


def _query(url: ServerUrl, name: str, seconds: float) -> None:
    response = _get(url, TEST_QUERY, seconds)
    if response.status == HTTPStatus.OK:
        return
    if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise _login_problem(url, response)
    if response.status == HTTPStatus.MISDIRECTED_REQUEST:
        fix = f"start the server with --allowed-hosts {url.host}, or use a name that it accepts"
        raise Problem(f"{name} does not accept the host name {url.host}", fix)
    text = response.body[:MAX_SHOWN_CHARACTERS].decode("utf-8", "replace").strip()
    raise Problem(f"{name} answers {response.status} to a query: {text}", "look at the server's log")


def _get_json(url: ServerUrl, path: str, seconds: float) -> Any:
    """None where the server has no such route."""
    response = _get(url, path, seconds)
    try:
        return json.loads(response.body) if response.status == HTTPStatus.OK else None
    except (ValueError, RecursionError):
        return None


def _run_query(url: ServerUrl, query: str, seconds: float) -> list[Series]:
    """Empty if the server refuses the query: whether it answers at all was checked before."""
    try:
        rows = _get_json(url, f"/api/v1/query?query={quote(query)}", seconds)["data"]["result"]
        return [(row["metric"], float(row["value"][1])) for row in rows]
    except (ValueError, LookupError, TypeError):
        return []


def _login_problem(url: ServerUrl, response: HttpResponse) -> Problem:
    if url.headers:
        what = f"{url.place} refuses these credentials ({response.status})"
        fix = (
            "check the token, or user and password; on the server, `gpuscope user token NAME` makes a new token"
        )
        return Problem(what, fix)
    scheme = response.header("www-authenticate").partition(" ")[0] or "none named"
    what = f"{url.place} needs a login ({response.status}, scheme {scheme})"
    if scheme.lower() == "basic":
        return Problem(what, "give user and password: --server http://USER:PASSWORD@…")
    return Problem(what, "create a token on the server (gpuscope user token NAME) and set GPUSCOPE_TOKEN to it")
