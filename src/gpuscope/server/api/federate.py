"""`/federate`: the newest sample of every selected series as Prometheus text, each with its own time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from gpuscope.exposition.text import escape_label_value
from gpuscope.server.api.encode import number_text
from gpuscope.store import Store
from gpuscope.store.series import STALE_NAN_BITS, Labels, Matcher, Series


def federate_text(
    store: Store, selectors: Sequence[Sequence[Matcher]], now_ms: int, lookback_ms: int, external: Labels
) -> bytes:
    found: dict[Labels, Series] = {}
    for matchers in selectors:
        for series in store.latest(matchers, now_ms - lookback_ms + 1, now_ms):
            if series.values.view(np.uint64)[-1] != STALE_NAN_BITS:
                found[series.labels] = series
    lines: list[str] = []
    for name, group in groupby(sorted(found, key=lambda labels: (_name(labels), labels)), key=_name):
        lines.append(f"# TYPE {name} untyped")
        for labels in group:
            series = found[labels]
            value = number_text(float(series.values[-1]))
            lines.append(f"{name}{_labels_text(labels, external)} {value} {int(series.timestamps[-1])}")
    lines.append("")
    return "\n".join(lines).encode()


def _name(labels: Labels) -> str:
    return next((value for name, value in labels if name == "__name__"), "")


def _labels_text(labels: Labels, external: Labels) -> str:
    # Without an instance label the federating Prometheus would set its own; an empty one forbids it.
    own = {"instance": "", **{name: value for name, value in labels if name != "__name__"}}
    pairs = {**own, **{name: value for name, value in external if name not in own}}
    return (
        "{" + ",".join(f'{name}="{escape_label_value(value)}"' for name, value in sorted(pairs.items())) + "}"
    )
