"""Reads the options that many kinds of channels have: secrets, URLs, `http_config`, `tls_config`, addresses."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import UNUSED, HttpConfig, read_http_config, read_sender_config
from gpuscope.judge.notify.channel import SECRET, SecretText

PLAIN_HTTP = HttpConfig()


def finish(table: ConfigMapping) -> None:
    """Refuse the keys that nothing has read."""
    table.finish((), lambda text: None)


def read_secret(table: ConfigMapping, key: str) -> SecretText:
    """`key`, or `key_file`; empty if neither is given."""
    path, text = table.file(f"{key}_file"), table.text(key)
    if text and path is not None:
        table.fail(key, f"give it or {key}_file, not both")
    return SecretText(text, path)


def read_secret_url(table: ConfigMapping, key: str) -> SecretText:
    secret = read_secret(table, key)
    if secret.path is None and table.has(key):
        _check_url(table, key, secret.reveal())
    return secret


def read_required_url(table: ConfigMapping, key: str) -> SecretText:
    url = read_secret_url(table, key)
    if not url:
        table.fail(key, f"give {key} or {key}_file")
    return url


def read_plain_url(table: ConfigMapping, key: str, default: str) -> str:
    url = table.text(key, default)
    _check_url(table, key, url)
    return url


def _check_url(table: ConfigMapping, key: str, url: str) -> None:
    if url == SECRET or "{{" in url:  # a redacted file, which amtool reads too; a template
        return
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_url = is_url and not any(character.isspace() for character in parts.netloc)
    except ValueError:
        is_url = False
    if not is_url:
        table.fail(key, "must be an http:// or https:// URL")  # not repeated: it may hold a token


def read_channel_http(table: ConfigMapping, default: HttpConfig) -> HttpConfig:
    """`http_config` of this table, or the global one."""
    if not table.has("http_config"):
        table.raw("http_config")
        return default
    part = table.table("http_config")
    http = read_sender_config(part)
    part.finish(UNUSED, lambda text: None)
    return http


def has_authorization(table: ConfigMapping) -> bool:
    """Whether the entry's own `http_config` has credentials that are sent as a token."""
    if not table.has("http_config"):
        return False
    http = table.table("http_config")
    return any(http.has(key) for key in ("authorization", "bearer_token", "bearer_token_file"))


def read_channel_tls(table: ConfigMapping, key: str) -> tuple[ssl.SSLContext, str] | None:
    """The context and the name to check the certificate for, which may be empty."""
    if not table.has(key):
        table.raw(key)
        return None
    wrapped = ConfigMapping({"tls_config": table.raw(key)}, table.location, table.folder, table.files)
    http = read_http_config(wrapped)
    return (http.tls, http.server_name) if http.tls is not None else None


def read_host_port(table: ConfigMapping, key: str) -> tuple[str, int] | None:
    text = table.text(key)
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        table.fail(key, f"{text!r} is not HOST:PORT, for instance mail.example.org:587")
    return host.removeprefix("[").removesuffix("]"), int(port)


def read_texts(table: ConfigMapping, defaults: Mapping[str, str]) -> dict[str, str]:
    """Templates by key."""
    return {key: table.text(key, default) for key, default in defaults.items()}


def read_text_tables(table: ConfigMapping, key: str, keys: Sequence[str]) -> tuple[dict[str, str], ...]:
    """A list of tables whose values are templates."""
    entries = []
    for entry in table.tables(key):
        entries.append({name: entry.text(name) for name in keys if entry.has(name)})
        finish(entry)
    return tuple(entries)
