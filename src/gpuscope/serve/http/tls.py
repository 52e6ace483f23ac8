"""Builds a TLS context and a client certificate check from `tls_server_config` of a web configuration file.

Translates Go's names of versions, curves and cipher suites into OpenSSL's. Where OpenSSL cannot behave as Go
does, this module is stricter: a client certificate is always verified, even with RequestClientCert.
"""

from __future__ import annotations

import asyncio
import ipaddress
import reprlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.base.errors import UsageError
from gpuscope.base.files import check_regular_file

TLS_KEYS = (
    "cert", "key", "client_ca", "cert_file", "key_file", "client_auth_type", "client_ca_file", "cipher_suites",
    "curve_preferences", "min_version", "max_version", "prefer_server_cipher_suites", "client_allowed_sans",
)  # fmt: skip
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_OPTIONAL,
    "RequireClientCert": ssl.CERT_REQUIRED,
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
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Go accepts these names too; like OpenSSL it uses these suites regardless of the list."""
_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}

Table = Mapping[Any, Any]
PeerCheck = Callable[[asyncio.BaseTransport], bool]


@dataclass(frozen=True, slots=True)
class TlsConfig:
    context: ssl.SSLContext
    accepts_peer: PeerCheck | None = None


def build_tls(table: Table, folder: Path) -> TlsConfig:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        _load_own_certificate(context, table, folder)
        context.minimum_version = _choice(table, "min_version", _TLS_VERSIONS, "TLS12")
        context.maximum_version = _choice(table, "max_version", _TLS_VERSIONS, "TLS13")
        _choose_ciphers(context, table)
        has_ca = _load_client_ca(context, table, folder)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(f"tls_server_config: {error}") from None
    _set_client_auth(context, table, has_ca)
    sans = _strings(table, "client_allowed_sans")
    if sans is not None and context.verify_mode is ssl.CERT_NONE:
        raise UsageError(
            "tls_server_config.client_allowed_sans needs client_auth_type RequireAndVerifyClientCert"
        )
    return TlsConfig(context, None if sans is None else san_check(sans))


def _set_client_auth(context: ssl.SSLContext, table: Table, has_ca: bool) -> None:
    context.verify_mode = _choice(table, "client_auth_type", _CLIENT_AUTH, "NoClientCert")
    if has_ca and context.verify_mode is ssl.CERT_NONE:
        raise UsageError("tls_server_config has a client CA but no client_auth_type")
    if has_ca or context.verify_mode is ssl.CERT_NONE:
        return
    kind = table.get("client_auth_type")
    if kind in ("RequireClientCert", "RequireAnyClientCert"):
        raise UsageError(
            f"tls_server_config.client_auth_type {kind} accepts unverified certificates, "
            "which is not supported; use RequireAndVerifyClientCert with client_ca_file"
        )
    if kind == "RequestClientCert":  # Go requests a certificate and ignores it
        context.verify_mode = ssl.CERT_NONE
        return
    context.load_default_certs(ssl.Purpose.CLIENT_AUTH)  # as Go does without a CA


def _load_own_certificate(context: ssl.SSLContext, table: Table, folder: Path) -> None:
    for inline in ("cert", "key"):
        if not _text(table, inline) and not _text(table, f"{inline}_file"):
            raise UsageError(f"tls_server_config lacks {inline}_file")
    import tempfile  # here, because an agent without TLS does not need it

    with ExitStack() as stack:
        names = []
        for inline in ("cert", "key"):
            name = _text(table, f"{inline}_file")
            if name:
                names.append(check_regular_file(folder / name))
                continue
            # OpenSSL loads a certificate and its key from files only.
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".pem"))  # mode 0600
            file.write(_text(table, inline))
            file.flush()
            names.append(Path(file.name))
        # Without `password` OpenSSL prompts for one on the terminal.
        context.load_cert_chain(names[0], names[1], password=lambda: b"")


def _load_client_ca(context: ssl.SSLContext, table: Table, folder: Path) -> bool:
    if name := _text(table, "client_ca_file"):
        context.load_verify_locations(check_regular_file(folder / name))
        return True
    if content := _text(table, "client_ca"):
        context.load_verify_locations(cadata=content)
        return True
    return False


def _choose_ciphers(context: ssl.SSLContext, table: Table) -> None:
    suites = _translate(table, "cipher_suites", {**_SUITES, **dict.fromkeys(_TLS13_SUITES, "")})
    if any(suites):
        context.set_ciphers(":".join(filter(None, suites)))
    curves = _translate(table, "curve_preferences", _CURVES)
    if curves and len(set(curves)) < len(_CURVES):
        # Python can set only one curve: use the first, so that no unlisted curve is used.
        context.set_ecdh_curve(curves[0])
    prefers = table.get("prefer_server_cipher_suites", True)
    if not isinstance(prefers, bool):
        raise UsageError(
            f"tls_server_config.prefer_server_cipher_suites must be true or false, not {reprlib.repr(prefers)}"
        )
    if prefers:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE


def _translate(table: Table, key: str, names: Mapping[str, str]) -> list[str]:
    values = _strings(table, key) or ()
    for name in values:
        if name not in names:
            raise UsageError(
                f"tls_server_config.{key}: unknown {reprlib.repr(name)}; known are {', '.join(names)}"
            )
    return [names[name] for name in values]


def _choice(table: Table, key: str, values: Mapping[str, Any], default: str) -> Any:
    name = table.get(key) or default
    if not isinstance(name, str) or name not in values:
        raise UsageError(
            f"tls_server_config.{key}: unknown {reprlib.repr(name)}; known are {', '.join(values)}"
        )
    return values[name]


def _text(table: Table, key: str) -> str:
    value = table.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"tls_server_config.{key} must be a string, not {reprlib.repr(value)}")
    return value


def _strings(table: Table, key: str) -> Sequence[str] | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"tls_server_config.{key} must be a list of strings")
    return value


def san_check(allowed: Sequence[str]) -> PeerCheck:
    """A check that accepts client certificates with one of these subject names: DNS, IP, e-mail or URI.

    As in exporter-toolkit, a client without a certificate passes if client_auth_type permits it.
    """
    names = frozenset(allowed)

    def accepts(transport: asyncio.BaseTransport) -> bool:
        certificate = transport.get_extra_info("peercert")
        if not certificate:
            return True
        return any(_san(kind, value) in names for kind, value in certificate.get("subjectAltName", ()))

    return accepts


def _san(kind: str, value: str) -> str | None:
    if kind == "IP Address":
        try:
            return str(ipaddress.ip_address(value.strip()))  # normalised as in Go; OpenSSL expands IPv6
        except ValueError:
            return None
    return value if kind in ("DNS", "email", "URI") else None
