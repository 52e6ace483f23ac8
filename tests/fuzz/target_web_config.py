"""A web configuration file: gives a configuration, or a UsageError in one sentence that names the file."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from gpuscope.base.errors import UsageError
from gpuscope.serve.http.messages import Request, Response, encode_head, text
from gpuscope.serve.web_config import load_web_config

MEMORY = Path("/dev/shm")  # ext4 flushes a file that is truncated and written again: 3 ms per case
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-web-", dir=MEMORY if MEMORY.is_dir() else None))

SEEDS = (
    b"",
    b"tls_server_config: {cert_file: c.pem, key_file: k.pem, min_version: TLS12}",
    b"tls_server_config: {client_auth_type: NoClientCert, client_ca_file: ca.pem}",
    b"tls_server_config:\n  cert: |\n    -----BEGIN CERTIFICATE-----\n  key: x\n  client_allowed_sans: [a]",
    b"http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: 1",
    b"basic_auth_users:\n  ann: $2b$04$XGuZIVrvGF5GIZVL/P2aYO9RhqdFH23dIyILOf//2CHFOCmMdQWye\n",
    b"rate_limit:\n  interval: 1m30s\n  burst: 5\n",
    b"tls_server_config: {cipher_suites: [TLS_AES_128_GCM_SHA256], curve_preferences: [X25519]}",
    b"a: &a [*a]\nrate_limit: {<<: {interval: 0x1}}\n? [b]\n: c",
)
TOKENS = (
    b"tls_server_config:", b"http_server_config:", b"basic_auth_users:", b"rate_limit:", b"headers:",
    b"burst: ", b"interval: ", b"http2: true", b"cert: ", b"key: ", b"cert_file: ", b"key_file: ",
    b"client_ca: ", b"\n  ",
    b"{", b"}", b"[", b"]", b"&a ", b"*a", b"!!python/object:", b"!!int ", b"!!timestamp ", b"<<: ", b"1_",
    b"~", b"2026-13-01", b"0o9", b".inf", b"Content-Security-Policy: ", b"\xff", b"'", b'"', b"|", b"? ",
)  # fmt: skip


async def _hello(request: Request) -> Response:
    return text("hello")


def run(data: bytes) -> None:
    path = FOLDER / "web.yml"
    path.write_bytes(data)
    complaint = ""
    logging.disable(logging.WARNING)  # http2 warns
    try:
        config = load_web_config(path)
    except UsageError as error:
        complaint = str(error)
    finally:
        logging.disable(logging.NOTSET)
    if complaint:
        assert "web.yml" in complaint
        assert "\n" not in complaint
        return
    try:
        config.wrap(_hello)(Request("GET", "/")).__await__().send(None)
    except StopIteration as done:
        response = done.value
    encode_head(response, close=True, length=len(response.body))  # raises if a header contains a line break
