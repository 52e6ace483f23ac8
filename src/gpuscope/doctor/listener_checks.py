"""The ports: whether the agent's is free, and whether what already serves on one is ready.

Asked is `/-/ready` on this machine's loopback address, which is open without a login wherever the server
listens: so this works inside a container too, whose server asks everybody else to log in.
"""

from __future__ import annotations

import errno
import http.client
import socket
from collections.abc import Iterator

from gpuscope.doctor import Diagnosis, Scene, Verdict

AGENT = ("", 9400)
SERVER = ("127.0.0.1", 9470)
ANSWER_SECONDS = 2.0
MAX_ANSWER_BYTES = 200
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  where it listens, not us


def the_port(scene: Scene) -> Iterator[Diagnosis]:
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
                yield Diagnosis(Verdict.BAD, f"port {port} cannot be used: {error.strerror}", fix)
            return
    yield Diagnosis(Verdict.GOOD, f"port {port} is free")


def the_server(scene: Scene) -> Iterator[Diagnosis]:
    """Says something only where there is one: most machines have just the agent."""
    if scene.settings.listen is None and (finding := _serving(*SERVER)):
        yield finding


def _unknown(port: int) -> Diagnosis:
    fix = f"ss -ltnp 'sport = :{port}' shows who; choose another with --listen"
    return Diagnosis(Verdict.NOTE, f"port {port} is in use: an agent or another exporter serves there", fix)


def _serving(host: str, port: int) -> Diagnosis | None:
    """What the gpuscope there says of itself; None if nothing answers as one would."""
    connection = http.client.HTTPConnection(_LOOPBACK.get(host, host), port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/-/ready")
        response = connection.getresponse()
        text = response.read(MAX_ANSWER_BYTES).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException):
        return None  # nobody, or TLS, or no HTTP at all
    finally:
        connection.close()
    if response.status == http.HTTPStatus.OK:
        return Diagnosis(Verdict.GOOD, f"port {port} is served, and what serves it is ready")
    if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        return Diagnosis(Verdict.NOTE, f"port {port} is served, but not ready: {text}")
    return None


CHECKS = (the_port, the_server)
