"""The ports: whether the agent's is free, and whether what already serves on one is ready.

Asked is `/-/ready` on this machine's loopback address, which is open without a login wherever the server
listens: so this works inside a container too, whose server asks everybody else to log in.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from http import HTTPStatus

from gpuscope.blocking_http import BlockingHttp, HttpAddress
from gpuscope.doctor import Finding, Scene, Verdict

AGENT = ("", 9400)
SERVER = ("127.0.0.1", 9470)
ANSWER_SECONDS = 2.0
MAX_BODY_BYTES = 64 << 10
MAX_SHOWN_BYTES = 200
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  where it listens, not us


def the_port(scene: Scene) -> Iterator[Finding]:
    host, port = scene.settings.listen or AGENT
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                yield _serving(host, port) or _unknown(port)
            else:
                fix = "choose another with --listen"
                yield Finding(Verdict.BAD, f"port {port} cannot be used: {error.strerror}", fix)
            return
    yield Finding(Verdict.GOOD, f"port {port} is free")


def the_server(scene: Scene) -> Iterator[Finding]:
    """Says something only where there is one: most machines have just the agent."""
    if scene.settings.listen is None and (finding := _serving(*SERVER)):
        yield finding


def _unknown(port: int) -> Finding:
    fix = f"ss -ltnp 'sport = :{port}' shows who; choose another with --listen"
    return Finding(Verdict.NOTE, f"port {port} is in use: an agent or another exporter serves there", fix)


def _serving(host: str, port: int) -> Finding | None:
    """What the gpuscope there says of itself; None if nothing answers as one would."""
    address = HttpAddress(_LOOPBACK.get(host, host), port)
    try:
        with BlockingHttp(address, timeout_seconds=ANSWER_SECONDS, max_body_bytes=MAX_BODY_BYTES) as http:
            response = http.request("GET", "/-/ready")
    except OSError:
        return None  # nothing listens, or it speaks TLS or another protocol
    text = response.body[:MAX_SHOWN_BYTES].decode("utf-8", "replace").strip()
    if response.status == HTTPStatus.OK:
        return Finding(Verdict.GOOD, f"port {port} is served, and what serves it is ready")
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return Finding(Verdict.NOTE, f"port {port} is served, but not ready: {text}")
    return None


CHECKS = (the_port, the_server)
