"""Everything as OpenMetrics text, family by family, one series at a time.

The store does not know types, so families are `unknown`. Stale markers are left out: the format has no way to
say them; so are series without a name. Times are in seconds with milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.series import STALE_NAN_BITS, Labels, Matcher, MatchOp
from gpuscope.store.index import Index
from gpuscope.store.reader import Reader
from gpuscope.store.tick import Float64s

_EVER_START, _EVER_END = -(2**62), 2**62
_AT_ONCE = 16
_PLAIN_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*").fullmatch
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def export_openmetrics(
    index: Index, reader: Reader, matchers: Sequence[Matcher], start_ms: int | None, end_ms: int | None
) -> Iterator[str]:
    """Pieces of text that together are one exposition, ended by `# EOF`."""
    start = _EVER_START if start_ms is None else start_ms
    end = _EVER_END if end_ms is None else end_ms
    for name in index.pairs_of(index.select(matchers)).get("__name__", []):
        same_name = Matcher("__name__", MatchOp.EQUAL, name)
        sids = index.select((*matchers, same_name))
        first = True
        for at in range(0, len(sids), _AT_ONCE):
            groups = index.by_target(sids[at : at + _AT_ONCE])
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
    """A metric or label name; one beyond the classic letters is quoted, as Prometheus 3 writes it."""
    return text if _PLAIN_NAME(text) else _quoted(text)


def format_value(value: float) -> str:
    """A float as OpenMetrics writes it."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
