"""Certificates for tests: a server's own, and client certificates of a CA with chosen alternative names."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


def make_certificate(
    folder: Path, name: str = "", sans: str = "DNS:localhost", ca: Certificate | None = None
) -> Certificate:
    """`cert.pem` and `key.pem` in the folder, or `NAME-cert.pem`; signed by `ca`, or by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    start = f"{name}-" if name else ""
    made = Certificate(folder / f"{start}cert.pem", folder / f"{start}key.pem")
    command = ["openssl", "req", "-x509", *_NEW_KEY, "-subj", f"/CN={name or 'localhost'}"]
    command += ["-addext", f"subjectAltName={sans}", "-keyout", str(made.key), "-out", str(made.cert)]
    if ca is not None:
        command += ["-CA", str(ca.cert), "-CAkey", str(ca.key), "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True)
    return made
