"""Checks of the ports: whether the agent's port is free, or a gpuscope that listens there is ready.

Requests `/-/ready` on the loopback address, which never needs a login. It therefore also works inside a
container whose server requires a login from all other addresses.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from http import HTTPStatus

from gpuscope.base.blocking_http import BlockingHttp, HttpAddress
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict

AGENT = ("", 9400)
SERVER = ("127.0.0.1", 9470)
ANSWER_SECONDS = 2.0
MAX_BODY_BYTES = 64 << 10
MAX_SHOWN_BYTES = 200
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not our own address


def listen_port(context: DoctorContext) -> Iterator[CheckResult]:
    host, port = context.settings.listen or AGENT
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                yield _serving(host, port) or _unknown(port)
            else:
                fix = "choose another port with --listen"
                yield CheckResult(Verdict.BAD, f"port {port} cannot be used: {error.strerror}", fix)
            return
    yield CheckResult(Verdict.GOOD, f"port {port} is free")


def running_server(context: DoctorContext) -> Iterator[CheckResult]:
    """Returns a result only if a server is running: most machines have only the agent."""
    if context.settings.listen is None and (result := _serving(*SERVER)):
        yield result


def _unknown(port: int) -> CheckResult:
    fix = f"ss -ltnp 'sport = :{port}' shows the process; choose another port with --listen"
    return CheckResult(Verdict.NOTE, f"port {port} is in use by an agent or another exporter", fix)


def _serving(host: str, port: int) -> CheckResult | None:
    """The state of the gpuscope on this port; None if nothing answers like gpuscope."""
    address = HttpAddress(_LOOPBACK.get(host, host), port)
    try:
        with BlockingHttp(address, timeout_seconds=ANSWER_SECONDS, max_body_bytes=MAX_BODY_BYTES) as http:
            response = http.request("GET", "/-/ready")
    except OSError:
        return None  # no listener, TLS, or not HTTP
    text = response.body[:MAX_SHOWN_BYTES].decode("utf-8", "replace").strip()
    if response.status == HTTPStatus.OK:
        return CheckResult(Verdict.GOOD, f"the gpuscope on port {port} is ready")
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return CheckResult(Verdict.NOTE, f"the gpuscope on port {port} is not ready: {text}")
    return None


CHECKS = (listen_port, running_server)
