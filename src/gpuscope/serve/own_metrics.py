"""The server's own metrics: the state of its store, or of its requests to the engine behind `--store`.

`gpuscope_engine_up` is absent until the first request to the engine.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

from gpuscope import __version__
from gpuscope.history.store.inspection import Stats
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, metric_by, single_metric
from gpuscope.serve.api.proxy import EngineStats

_ROWS = (
    ("gpuscope_store_series", "gauge", "series", "Series in the store."),
    (
        "gpuscope_store_counted_series",
        "gauge",
        "counted_series",
        "Series that count towards max_series; eight that have ended count as one.",
    ),
    ("gpuscope_store_max_series", "gauge", "max_series", "Series the store may hold (max_series)."),
    ("gpuscope_store_blocks", "gauge", "blocks", "Sealed blocks in the store."),
    ("gpuscope_store_head_samples", "gauge", "head_samples", "Samples not sealed yet."),
    ("gpuscope_store_head_bytes", "gauge", "head_bytes", "Memory of the samples not sealed yet."),
    (
        "gpuscope_store_kept_rows_bytes",
        "gauge",
        "kept_rows_bytes",
        "Memory of recent rows kept between wide queries; at most 33554432.",
    ),
    ("gpuscope_store_file_bytes", "gauge", "file_bytes", "Size of the store's file."),
    ("gpuscope_store_disk_bytes", "gauge", "disk_bytes", "Size of the data folder on the disk."),
    ("gpuscope_store_commits_total", "counter", "commits", "Transactions committed."),
    ("gpuscope_store_failed_commits_total", "counter", "failed_commits", "Transactions that failed."),
    ("gpuscope_store_samples_total", "counter", "samples", "Samples appended."),
    ("gpuscope_store_seals_total", "counter", "seals", "Heads sealed."),
    ("gpuscope_store_merges_total", "counter", "merges", "Blocks merged."),
    ("gpuscope_store_restarts_total", "counter", "restarts", "Times a deleted data folder was created again."),
    ("gpuscope_store_damaged_chunks", "gauge", "damaged_chunks", "Chunks that could not be read."),
)


def store_families(stats: Stats) -> Iterator[MetricFamily]:
    for name, kind, attribute, help_text in _ROWS:
        yield single_metric(name, kind, help_text, getattr(stats, attribute))
    help_text = "1 while the disk is full and nothing is stored."
    yield single_metric("gpuscope_store_full", "gauge", help_text, int(stats.full_since_ms is not None))
    help_text = "1 while the data folder is missing and nothing is stored."
    yield single_metric("gpuscope_store_lost", "gauge", help_text, int(stats.lost is not None))
    refused = "gpuscope_store_refused_samples_total"
    yield metric_by("reason", refused, "counter", "Samples refused, by reason.", stats.refused)


def build_families() -> Iterator[MetricFamily]:
    labels = LabelSet((("version", __version__), ("pythonversion", platform.python_version())))
    yield MetricFamily(
        "gpuscope_build_info", "gauge", "Always 1; labels carry the version.", [Sample(labels, 1)]
    )


def engine_families(stats: EngineStats) -> Iterator[MetricFamily]:
    """Metrics of the requests to another engine. Endpoint labels are bounded: only known endpoints occur."""
    if stats.up is not None:
        help_text = "1 if the engine's last response was usable, 0 if it was not or if there was none."
        yield single_metric("gpuscope_engine_up", "gauge", help_text, int(stats.up))
    yield MetricFamily(
        "gpuscope_engine_requests_total",
        "counter",
        "Responses of the engine, by endpoint and HTTP status.",
        [
            Sample(LabelSet((("endpoint", endpoint), ("code", str(status)))), count)
            for (endpoint, status), count in sorted(stats.requests.items())
        ],
    )
    help_text = "Total time to the first byte of the engine's responses, by endpoint."
    yield metric_by("endpoint", "gpuscope_engine_request_seconds_total", "counter", help_text, stats.seconds)
    help_text = "Requests without a usable response, by reason."
    yield metric_by("reason", "gpuscope_engine_failures_total", "counter", help_text, stats.failures)
