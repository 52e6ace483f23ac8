"""Limits of one scrape job: Prometheus' keys of a job or of `global`, with the server's limits as defaults.

Prometheus has no limits by default; here `base/limits.py` applies where a key is absent or 0. The label limits
apply after relabelling, which may remove labels; the limits in `text` apply while parsing and are never lower.
"""

from __future__ import annotations

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
