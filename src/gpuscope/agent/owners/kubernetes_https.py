"""GET requests to the kubelet or the API server over HTTPS, with the service account's token.

The token is read for every request, because Kubernetes replaces it. The server's certificate is verified with
the cluster's CA; a kubelet with a self-signed certificate needs the setting `kubelet_insecure`.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from gpuscope.base.blocking_http import BlockingHttp, HttpAddress
from gpuscope.base.errors import SourceError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_BYTES: Final = 64 << 20


def get(url: str, *, account: Path = SERVICE_ACCOUNT, insecure: bool = False, timeout: float = 10.0) -> bytes:
    """The body of a 200 response; raises a SourceError that says what to change."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise SourceError(f"{url!r} is not https://HOST:PORT/…")
    headers = [("accept", "application/json")]
    token = _token(account)
    if token:
        headers.append(("authorization", f"Bearer {token}"))
    address = HttpAddress(
        parts.hostname, parts.port or 443, tls=_context(account, insecure), host_header=parts.netloc
    )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with BlockingHttp(address, timeout_seconds=timeout, max_body_bytes=MAX_BYTES) as http:
            response = http.request("GET", target, headers)
    except OSError as error:
        raise SourceError(f"{parts.netloc} does not answer: {error}") from None
    if response.status in (401, 403):
        raise SourceError(
            f"{parts.netloc} refused the request ({response.status}): grant the service account `get` on "
            "nodes/pods (kubelet) or `list` on pods (API server)"
        )
    if response.status != 200:
        raise SourceError(f"{parts.netloc} answers {response.status} with {len(response.body)} bytes")
    return response.body


def api_server_url(environment: dict[str, str], node: str) -> str:
    """The list of this node's pods, served from the API server's cache."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SourceError("not in a Kubernetes pod: KUBERNETES_SERVICE_HOST is not set")
    host = f"[{host}]" if ":" in host else host
    selector = quote(f"spec.nodeName={node}", safe="")
    return f"https://{host}:{port}/api/v1/pods?fieldSelector={selector}&resourceVersion=0"


def _token(account: Path) -> str:
    try:
        return (account / "token").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _context(account: Path, insecure: bool) -> ssl.SSLContext:
    authority = account / "ca.crt"
    context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
