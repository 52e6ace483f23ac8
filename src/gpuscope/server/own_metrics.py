"""The server's own metrics: what its store holds, takes and refuses."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.metrics.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.store.maintenance import Stats

_ROWS = (
    ("gpuscope_store_series", "gauge", "series", "Series in the store."),
    ("gpuscope_store_blocks", "gauge", "blocks", "Sealed blocks in the store."),
    ("gpuscope_store_head_samples", "gauge", "head_samples", "Samples not sealed yet."),
    ("gpuscope_store_head_bytes", "gauge", "head_bytes", "Memory of the samples not sealed yet."),
    ("gpuscope_store_file_bytes", "gauge", "file_bytes", "Size of the store's file."),
    ("gpuscope_store_commits_total", "counter", "commits", "Transactions committed."),
    ("gpuscope_store_failed_commits_total", "counter", "failed_commits", "Transactions that failed."),
    ("gpuscope_store_samples_total", "counter", "samples", "Samples taken."),
    ("gpuscope_store_seals_total", "counter", "seals", "Heads sealed."),
    ("gpuscope_store_merges_total", "counter", "merges", "Blocks merged."),
    ("gpuscope_store_damaged_chunks", "gauge", "damaged_chunks", "Chunks that could not be read."),
)


def store_families(stats: Stats) -> Iterator[MetricFamily]:
    for name, kind, attribute, help_text in _ROWS:
        yield MetricFamily(name, kind, help_text, [Sample(NO_LABELS, getattr(stats, attribute))])
    full = 0 if stats.full_since_ms is None else 1
    yield MetricFamily(
        "gpuscope_store_full",
        "gauge",
        "1 while the disk is full and nothing is stored.",
        [Sample(NO_LABELS, full)],
    )
    refused = [Sample(LabelSet((("reason", why),)), count) for why, count in sorted(stats.refused.items())]
    yield MetricFamily(
        "gpuscope_store_refused_samples_total", "counter", "Samples refused, by reason.", refused
    )
