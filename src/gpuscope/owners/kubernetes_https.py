"""GET requests to the kubelet or the API server over HTTPS, with the service account's token.

The token is read for every request, because Kubernetes replaces it. The server's certificate is verified with
the cluster's CA; a kubelet with a self-signed certificate needs the setting `kubelet_insecure`.
"""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from gpuscope.errors import SourceError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_BYTES: Final = 64 << 20


def get(url: str, *, account: Path = SERVICE_ACCOUNT, insecure: bool = False, timeout: float = 10.0) -> bytes:
    """The body of a 200 response; raises a SourceError that says what to change."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise SourceError(f"{url!r} is not https://HOST:PORT/…")
    headers = {"Accept": "application/json"}
    token = _token(account)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPSConnection(
        parts.hostname, parts.port or 443, timeout=timeout, context=_context(account, insecure)
    )
    try:
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=headers)
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"{parts.netloc} does not answer: {error}") from None
    finally:
        connection.close()
    if answer.status in (401, 403):
        raise SourceError(
            f"{parts.netloc} refuses ({answer.status}): give the service account `get` on nodes/pods "
            "(kubelet) or `list` on pods (API server)"
        )
    if answer.status != 200 or len(body) > MAX_BYTES:
        raise SourceError(f"{parts.netloc} answers {answer.status} with {len(body)} bytes")
    return body


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
