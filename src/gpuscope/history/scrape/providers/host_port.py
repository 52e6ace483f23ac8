"""Host and port as one address, with brackets around IPv6, as Go's `net.JoinHostPort` does."""

from __future__ import annotations


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
