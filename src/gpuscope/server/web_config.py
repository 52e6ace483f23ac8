"""TLS and passwords from an exporter-toolkit web configuration file.

The file is the one Prometheus' own exporters take. YAML and bcrypt are imported only when there is such a file.
A password costs bcrypt's time once; after that its digest is remembered, and a wrong one never is.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.errors import UsageError
from gpuscope.server.http.messages import Guard, Request, Response, text

_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_OPTIONAL,
    "RequireAnyClientCert": ssl.CERT_REQUIRED,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_TLS_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CHALLENGE = (("www-authenticate", 'Basic realm="gpuscope"'),)
_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
# Compared with when the user is unknown, so that a stranger cannot time which names exist.
_NOBODY_HASH = b"$2b$10$XGuZIVrvGF5GIZVL/P2aYO9RhqdFH23dIyILOf//2CHFOCmMdQWye"


@dataclass(frozen=True, slots=True)
class WebConfig:
    tls: ssl.SSLContext | None = None
    guard: Guard | None = None


def load_web_config(path: Path) -> WebConfig:
    import yaml

    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"web config file {path}: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"web config file {path}: not valid YAML: {' '.join(str(error).split())}") from None
    table = _mapping(document or {}, path, "the file")
    for section in table:
        if section not in _SECTIONS:
            raise UsageError(
                f"web config file {path}: unknown section {section!r}; there are {', '.join(_SECTIONS)}"
            )
    tls = _mapping(table.get("tls_server_config") or {}, path, "tls_server_config")
    users = _mapping(table.get("basic_auth_users") or {}, path, "basic_auth_users")
    return WebConfig(_tls_context(tls, path) if tls else None, _password_guard(users, path) if users else None)


def _mapping(value: object, path: Path, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"web config file {path}: {name} must be a mapping")
    return value


def _tls_context(table: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(_beside(path, table["cert_file"]), _beside(path, table["key_file"]))
        context.minimum_version = _TLS_VERSIONS[table.get("min_version", "TLS12")]
        context.maximum_version = _TLS_VERSIONS[table.get("max_version", "TLS13")]
        if client_ca := table.get("client_ca_file"):
            context.load_verify_locations(_beside(path, client_ca))
        context.verify_mode = _CLIENT_AUTH[table.get("client_auth_type") or "NoClientCert"]
    except KeyError as error:
        raise UsageError(f"web config file {path}: tls_server_config lacks or does not know {error}") from None
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"web config file {path}: tls_server_config: {error}") from None
    return context


def _beside(path: Path, name: str) -> Path:
    """A relative file name in the configuration is relative to the configuration file."""
    return path.parent / str(name)


def _password_guard(users: Mapping[str, Any], path: Path) -> Guard:
    import bcrypt

    hashes = {str(user): str(stored).encode() for user, stored in users.items()}
    for user, stored in hashes.items():
        try:
            bcrypt.checkpw(b"", stored)
        except ValueError:
            raise UsageError(f"web config file {path}: the password of {user!r} is not a bcrypt hash") from None
    secret = os.urandom(16)
    proven: set[bytes] = set()

    def check(user: str, password: bytes) -> bool:
        matches = bcrypt.checkpw(password[:72], hashes.get(user, _NOBODY_HASH))
        return matches and user in hashes

    async def guard(request: Request) -> Response | None:
        credentials = _basic_credentials(request.header("authorization"))
        if credentials is None:
            return text("Unauthorized", 401, _CHALLENGE)
        user, password = credentials
        digest = hmac.digest(secret, repr((user, password)).encode(), hashlib.sha256)
        if digest in proven:
            return None
        if not await asyncio.get_running_loop().run_in_executor(None, check, user, password):
            return text("Unauthorized", 401, _CHALLENGE)
        proven.add(digest)
        return None

    return guard


def _basic_credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user.decode("utf-8", "replace"), password) if colon else None
