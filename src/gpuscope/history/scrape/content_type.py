"""Selects the exposition format from a target's Content-Type, as Prometheus 3 does.

An absent, malformed or unknown type (`text/html`) fails the scrape, unless the job has a
`fallback_scrape_protocol`. Protobuf is not supported; the Accept header does not request it.
"""

from __future__ import annotations

import re

PROTOCOLS = {
    "PrometheusText0.0.4": False,
    "PrometheusText1.0.0": False,
    "OpenMetricsText0.0.1": True,
    "OpenMetricsText1.0.0": True,
}
"""Values of `fallback_scrape_protocol`; True for OpenMetrics."""
UNREADABLE_PROTOCOLS = ("PrometheusProto",)

_TYPES = {"text/plain": False, "application/openmetrics-text": True}
_PROTOBUF = "application/vnd.google.protobuf"
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"  # RFC 9110's, not a secret  # noqa: S105
_MEDIA_TYPE = re.compile(rf"[ \t]*+({_TOKEN}/{_TOKEN})[ \t]*+(?=;|\Z)")
_PARAMETER = re.compile(rf';[ \t]*+({_TOKEN})=({_TOKEN}|"(?:[^"\\]|\\.)*+")[ \t]*+')
_SHOWN_CHARACTERS = 100


def is_openmetrics(content_type: str, fallback: str) -> bool:
    """True for OpenMetrics, False for text; ValueError with the reason if the scrape must fail."""
    media_type = parse_media_type(content_type)
    if media_type in _TYPES:
        return _TYPES[media_type]
    if media_type == _PROTOBUF:
        raise ValueError(f"received Content-Type {_PROTOBUF!r}, which was not requested")
    if fallback:
        return PROTOCOLS[fallback]
    if not content_type.strip():
        raise ValueError(
            "non-compliant scrape target sending blank Content-Type and no fallback_scrape_protocol specified"
        )
    shown = repr(content_type[:_SHOWN_CHARACTERS])
    if media_type is None:
        raise ValueError(f"cannot parse Content-Type {shown} and no fallback_scrape_protocol specified")
    raise ValueError(f"received unsupported Content-Type {shown} and no fallback_scrape_protocol specified")


def parse_media_type(header: str) -> str | None:
    """The type without its parameters, in lower case; None if the header is malformed."""
    match = _MEDIA_TYPE.match(header)
    if match is None:
        return None
    at, seen = match.end(), set()
    while header[at:].strip(" \t") not in ("", ";"):
        parameter = _PARAMETER.match(header, at)
        if parameter is None or parameter[1].lower() in seen:
            return None
        seen.add(parameter[1].lower())
        at = parameter.end()
    return match[1].lower()
