"""What one job's targets may send: Prometheus' keys of a job or of `global`, over the server's own limits.

Prometheus has no limits by default. Here the rows of `gpuscope.limits` hold where a key is absent or 0. Its
label limits hold after relabelling, which may take labels away; those of `text` hold while the text is read
and are never lower.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuscope.exposition.series_text import TextLimits
from gpuscope.limits import Limits as ServerLimits
from gpuscope.scrape.config_values import Table, parse_size_text

_ROWS = ServerLimits()


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int = _ROWS.scrape_max_body_bytes
    samples: int = _ROWS.scrape_max_samples
    labels: int = _ROWS.scrape_max_labels
    label_name_length: int = _ROWS.scrape_max_label_name_bytes
    label_value_length: int = _ROWS.scrape_max_label_value_bytes
    targets: int = 0
    """0: no limit but the server's on all targets together."""
    text: TextLimits = field(default_factory=TextLimits)


def server_limits(rows: ServerLimits) -> Limits:
    """For a job that says nothing."""
    return Limits(
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


def read_limits(table: Table, default: Limits) -> Limits:
    labels = table.count("label_limit", 0) or default.labels
    name_length = table.count("label_name_length_limit", 0) or default.label_name_length
    value_length = table.count("label_value_length_limit", 0) or default.label_value_length
    return Limits(
        table.parsed("body_size_limit", 0, parse_size_text) or default.body_bytes,
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
