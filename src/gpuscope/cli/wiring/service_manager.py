"""Tells systemd that this service is ready, and where it listens (the units have `Type=notify`).

`systemctl start` and units that are ordered after this one wait for it; `gpuscope render systemd --install`
reads the address from the status text. Without $NOTIFY_SOCKET, that is without a service manager, nothing is
sent.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

READY_STATUS = "listens on "
"""The status text, before the addresses."""
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - for comparison only

log = logging.getLogger("gpuscope")


def tell_systemd_ready(*urls: str, environment: Mapping[str, str] = os.environ) -> None:
    """A manager that cannot be reached is no reason to stop."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # of the abstract namespace
        address = f"\0{address[1:]}"
    status = f"STATUS={READY_STATUS}{' '.join(urls)}\n" if urls else ""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect(address)
            manager.sendall(f"READY=1\n{status}".encode())
    except OSError as error:
        log.warning("systemd was not told that this service is ready: %s", error.strerror)


def local_url(scheme: str, host: str, port: int) -> str:
    """An address that works on this machine."""
    host = _LOOPBACK.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
