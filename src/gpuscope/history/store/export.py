"""Exports the store as OpenMetrics text, one metric family after the other, one series at a time.

The store does not know types, so families are `unknown`. Stale markers, which OpenMetrics cannot represent, and
series without a name are left out. Times are in seconds with three decimals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.history.store.index import Index
from gpuscope.history.store.reader import Reader
from gpuscope.history.store.tick import Float64s
from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, MatchOp

_MIN_TIME_MS, _MAX_TIME_MS = -(2**62), 2**62
_BATCH_SERIES = 16
_PLAIN_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*").fullmatch
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def export_openmetrics(
    index: Index, reader: Reader, matchers: Sequence[Matcher], start_ms: int | None, end_ms: int | None
) -> Iterator[str]:
    """Yield parts of one exposition, ending with `# EOF`."""
    start = _MIN_TIME_MS if start_ms is None else start_ms
    end = _MAX_TIME_MS if end_ms is None else end_ms
    for name in sorted(index.label_columns(index.select(matchers)).values("__name__") - {""}):
        same_name = Matcher("__name__", MatchOp.EQUAL, name)
        sids = index.select((*matchers, same_name))
        first = True
        for at in range(0, len(sids), _BATCH_SERIES):
            groups = index.by_target(sids[at : at + _BATCH_SERIES])
            for sid, (times, values) in reader.read(groups, start, end).items():
                text = _series_text(name, index.labels(sid), times.tolist(), values)
                if text:
                    yield f"# TYPE {_name(name)} unknown\n{text}" if first else text
                    first = False
    yield "# EOF\n"


def _series_text(name: str, labels: Labels, times: list[int], values: Float64s) -> str:
    pairs = [f"{_name(key)}={_quoted(value)}" for key, value in labels if key != "__name__"]
    if _PLAIN_NAME(name):
        prefix = f"{name}{{{','.join(pairs)}}} " if pairs else f"{name} "
    else:
        prefix = f"{{{','.join([_quoted(name), *pairs])}}} "
    stale = (values.view(np.int64) == STALE_NAN_BITS).tolist()
    return "".join(
        f"{prefix}{format_value(value)} {time // 1000}.{time % 1000:03d}\n"
        for time, value, gone in zip(times, values.tolist(), stale, strict=True)
        if not gone
    )


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _name(text: str) -> str:
    """Return a metric or label name, quoted if it has characters that Prometheus 2 did not allow."""
    return text if _PLAIN_NAME(text) else _quoted(text)


def format_value(value: float) -> str:
    """Format a float as in OpenMetrics."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
