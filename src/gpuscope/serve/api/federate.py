"""`/federate`: the newest sample of every selected series as Prometheus text, each with its own time.

Names with other characters than letters, digits and underscores are escaped as the client's Accept header says
(`escaping=`): quoted for a Prometheus 3, with underscores by default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from gpuscope.history.promql.budget import Budget
from gpuscope.history.store import Store
from gpuscope.model.exposition.text import escape_label_value
from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, Series
from gpuscope.serve.api.encode import number_text

LINES_PER_PIECE = 1_000
DEFAULT_ESCAPING = "underscores"
_PLAIN = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_:]|^[0-9]")
_ESCAPING = re.compile(r";\s*escaping=\"?([A-Za-z0-9-]+)")
_OLD_TEXT = re.compile(r"\s*text/plain\s*(?:;|$)")


def _with_underscores(name: str) -> str:
    return _NOT_PLAIN.sub("_", name)


def _with_dots(name: str) -> str:
    return (
        name if _PLAIN.fullmatch(name) else _NOT_PLAIN.sub("__", name.replace("_", "__").replace(".", "_dot_"))
    )


def _with_values(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    return "U__" + _NOT_PLAIN.sub(lambda one: f"_{ord(one.group()):x}_", name.replace("_", "__"))


ESCAPINGS: Mapping[str, Callable[[str], str]] = {
    "allow-utf-8": str,
    "underscores": _with_underscores,
    "dots": _with_dots,
    "values": _with_values,
}


def negotiate(accept: str) -> str:
    """The escaping of the Accept header; it may be a parameter of a format that is not served here."""
    found = DEFAULT_ESCAPING
    for clause in accept.split(","):
        requested = _ESCAPING.search(clause)
        if requested is not None and requested[1] in ESCAPINGS:
            found = requested[1]
        if _OLD_TEXT.match(clause) and ("version=" not in clause or "version=0.0.4" in clause):
            break
    return found


def find_newest(
    store: Store, selectors: Sequence[Sequence[Matcher]], now_ms: int, lookback_ms: int, budget: Budget
) -> dict[Labels, Series]:
    """The selected series that have a name and a sample that is not stale."""
    # One load for all selectors: they often select the same series, and each load looks at every target.
    newest = store.any_latest(_checked(selectors, budget), now_ms - lookback_ms + 1, now_ms, budget.admit)
    return {
        series.labels: series
        for series in budget.watch(newest)
        if series.values.view(np.uint64)[-1] != STALE_NAN_BITS and _name(series.labels)
    }


def _checked(selectors: Sequence[Sequence[Matcher]], budget: Budget) -> Iterator[Sequence[Matcher]]:
    for matchers in selectors:
        budget.check()
        yield matchers


def federate_pieces(
    found: dict[Labels, Series], external: Labels, escaping: str, budget: Budget
) -> Iterator[bytes]:
    escape = ESCAPINGS[escaping]
    lines: list[str] = []
    for name, group in groupby(budget.sort(found, key=lambda labels: (_name(labels), labels)), key=_name):
        metric = escape(name)
        lines.append(f"# TYPE {_quoted(metric)} untyped\n")
        for labels in group:
            series = found[labels]
            value = number_text(float(series.values[-1]))
            sample = _series_text(metric, labels, external, escape)
            lines.append(f"{sample} {value} {int(series.timestamps[-1])}\n")
            if len(lines) > LINES_PER_PIECE:
                yield "".join(lines).encode()
                lines.clear()
    yield "".join(lines).encode()


def _name(labels: Labels) -> str:
    return next((value for name, value in labels if name == "__name__"), "")


def _series_text(metric: str, labels: Labels, external: Labels, escape: Callable[[str], str]) -> str:
    # Without an instance label the federating Prometheus would set its own; an empty one forbids it.
    own = {name: value for name, value in labels if name != "__name__"}
    added = sorted({"instance": "", **dict(external)}.items())
    pairs = [*own.items(), *((name, value) for name, value in added if name not in own)]
    inner = ",".join(f'{_quoted(escape(name))}="{escape_label_value(value)}"' for name, value in pairs)
    # A name that needs quotes stands among the labels.
    return f"{metric}{{{inner}}}" if _PLAIN.fullmatch(metric) else f"{{{_quoted(metric)},{inner}}}"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f'"{escape_label_value(name)}"'
