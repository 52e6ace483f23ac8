"""Renders a configuration document with every secret replaced, for `/api/v1/status/config`.

Every value that may be a secret is replaced, also in sections that gpuscope does not use. Comments are lost.
"""

from __future__ import annotations

import re

import yaml

from gpuscope.base.yaml_file import TextDumper

SECRET = "<secret>"  # noqa: S105 - Prometheus' own word
_SECRET_KEY = re.compile(
    r"(?i)(password|passwd|secret|token|credential|api_?key|access_?key|private_?key)|^key$"
)
_FILE_KEY = re.compile(r"(?i)_(file|ref|files)$")
_HEADERS = ("headers", "http_headers", "proxy_connect_header")
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]*@")


def redact(document: object) -> str:
    """Returns YAML text."""
    if not document:
        return ""
    text: str = yaml.dump(_clean(document), Dumper=TextDumper, sort_keys=False, allow_unicode=True)
    return text


def _clean(value: object) -> object:
    if isinstance(value, dict):
        return {key: _clean_pair(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return _USER_IN_URL.sub(f"{SECRET}@", value) if isinstance(value, str) else value


def _clean_pair(key: str, value: object) -> object:
    if key in _HEADERS and isinstance(value, dict):
        return dict.fromkeys(value, SECRET)
    if value is not None and _SECRET_KEY.search(key) and not _FILE_KEY.search(key):
        return SECRET
    return _clean(value)
