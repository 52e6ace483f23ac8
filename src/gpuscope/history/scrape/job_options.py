"""Limits of one scrape job: Prometheus' keys of a job or of `global`, with the server's limits as defaults.

Prometheus has no limits by default; here `base/limits.py` applies where a key is absent or 0. The label limits
apply after relabelling, which may remove labels; the limits in `text` apply while parsing and are never lower.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpuscope.base.config_values import ConfigMapping, parse_config_size
from gpuscope.base.limits import Limits
from gpuscope.model.exposition.series_text import TextLimits

_ROWS = Limits()


@dataclass(frozen=True, slots=True)
class JobLimits:
    body_bytes: int = _ROWS.scrape_max_body_bytes
    samples: int = _ROWS.scrape_max_samples
    labels: int = _ROWS.scrape_max_labels
    label_name_length: int = _ROWS.scrape_max_label_name_bytes
    label_value_length: int = _ROWS.scrape_max_label_value_bytes
    targets: int = 0
    """0: only the server's limit on all targets applies."""
    text: TextLimits = field(default_factory=TextLimits)


def default_job_limits(rows: Limits) -> JobLimits:
    """The limits of a job that sets none."""
    return JobLimits(
        body_bytes=rows.scrape_max_body_bytes,
        samples=rows.scrape_max_samples,
        labels=rows.scrape_max_labels,
        label_name_length=rows.scrape_max_label_name_bytes,
        label_value_length=rows.scrape_max_label_value_bytes,
        text=TextLimits(
            rows.scrape_max_labels,
            rows.scrape_max_label_name_bytes,
            rows.scrape_max_label_value_bytes,
            rows.scrape_max_line_bytes,
            rows.scrape_max_metadata_bytes,
        ),
    )


def read_job_limits(table: ConfigMapping, default: JobLimits) -> JobLimits:
    labels = table.count("label_limit", 0) or default.labels
    name_length = table.count("label_name_length_limit", 0) or default.label_name_length
    value_length = table.count("label_value_length_limit", 0) or default.label_value_length
    return JobLimits(
        table.parsed("body_size_limit", 0, parse_config_size) or default.body_bytes,
        table.count("sample_limit", 0) or default.samples,
        labels,
        name_length,
        value_length,
        table.count("target_limit", 0) or default.targets,
        TextLimits(
            max(labels, default.text.labels),
            max(name_length, default.text.label_name_bytes),
            max(value_length, default.text.label_value_bytes),
            default.text.line_bytes,
            default.text.metadata_bytes,
        ),
    )


# Selects the exposition format from a target's Content-Type, as Prometheus 3 does.
#
# An absent, malformed or unknown type (`text/html`) fails the scrape, unless the job has a
# `fallback_scrape_protocol`. Protobuf is not supported; the Accept header does not request it.

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
