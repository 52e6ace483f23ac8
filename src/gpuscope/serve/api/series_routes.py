"""Endpoints about series: series, labels, label values, `/federate`, and with `--admin-api` those that delete.

Without `start` and `end` the whole history counts. Prometheus looks at whole blocks here, so near the ends of a
time range it may list a series that has no sample in it; this store does not. A deletion is complete when it is
answered: there are no tombstones, `clean_tombstones` only compacts the file.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote_to_bytes

import numpy as np

from gpuscope.history.promql import BadQueryError
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.labels import quote
from gpuscope.history.store import Store
from gpuscope.model.exposition.text import escape_label_value
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, Series
from gpuscope.serve.api.encode import labels_pieces, list_pieces, number_text, success_pieces
from gpuscope.serve.api.parameters import ApiError, Parameters, bad, parse_bool, unescape_name
from gpuscope.serve.api.query_routes import TRUNCATED, now_ms
from gpuscope.serve.api.responses import Body, LargeBody, data_answer, packer
from gpuscope.serve.http.messages import Request, Response, text

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi

S = TypeVar("S", LabelColumns, list[str])
M = TypeVar("M", bound=Sequence[Matcher])
MAX_SMALL_VALUES = 2_000
"""Values of a label, known and sorted, that are answered at once: a thread would take longer."""
LINES_PER_PIECE = 1_000
DEFAULT_ESCAPING = "underscores"
_PLAIN = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_:]|^[0-9]")
_ESCAPING = re.compile(r";\s*escaping=\"?([A-Za-z0-9-]+)")
_OLD_TEXT = re.compile(r"\s*text/plain\s*(?:;|$)")
SNAPSHOTS = "snapshots"
"""The subfolder of the data folder for snapshots."""


async def series(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    parameters.well_formed()
    if not parameters.all("match[]"):
        raise ApiError("bad_data", "no match[] parameter provided")
    limit, span, packs = parameters.limit(), parameters.span_ms(), packer(request)
    received_at = time.monotonic()

    def work(cancelled: threading.Event) -> Body | LargeBody:
        try:
            selectors = parameters.selectors()
        except ApiError as error:
            raise bad("match[]", error) from None
        budget = api.engine.budget(None, cancelled, received_at=received_at)
        results = api.store.any_series(_checked(selectors, budget), *span, budget.admit)
        order = results.order(partial(budget.check, "sorting"))
        first, warnings = _limited(results.take(order), limit)
        return packs.pack(success_pieces(labels_pieces(first), warnings), budget)

    return await api.answer(request, work)


def _checked(selectors: Iterable[M], budget: Budget) -> Iterator[M]:
    """Checks the time limit and cancellation between selectors: each may take a tenth of a second."""
    for matchers in selectors:
        budget.check()
        yield matchers


async def labels(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    limit, span = parameters.limit(), parameters.span_ms()

    def find(selectors: Iterable[list[Matcher]] | None, budget: Budget) -> Iterable[str]:
        if selectors is None:
            return api.store.label_names((), *span)
        return api.store.any_series(selectors, *span, budget.admit).used_names()

    return await _names(api, request, parameters, limit, find)


async def label_values(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    name, limit, span = _label_name(request), parameters.limit(), parameters.span_ms()

    is_plain = span == (None, None) and not parameters.all("match[]")
    known = api.store.known_label_values(name) if is_plain else None
    if known is not None and len(known) <= MAX_SMALL_VALUES:
        first, warnings = _limited(known, limit)
        return packer(request).whole(b"".join(success_pieces(list_pieces(first), warnings))).answer()

    def find(selectors: Iterable[list[Matcher]] | None, budget: Budget) -> Iterable[str]:
        if selectors is None:
            return api.store.label_values(name, (), *span)
        return api.store.any_series(selectors, *span, budget.admit).values(name) - {""}

    return await _names(api, request, parameters, limit, find)


async def _names(
    api: EmbeddedApi,
    request: Request,
    parameters: Parameters,
    limit: int | None,
    find: Callable[[Iterable[list[Matcher]] | None, Budget], Iterable[str]],
) -> Response:
    """The sorted result of `find` for any of the selectors (None: for all series)."""
    packs = packer(request)
    received_at = time.monotonic()

    def work(cancelled: threading.Event) -> Body | LargeBody:
        budget = api.engine.budget(None, cancelled, received_at=received_at)
        selectors = parameters.selectors()
        results = find(_checked(selectors, budget) if selectors else None, budget)
        first, warnings = _limited(budget.sort(results), limit)
        return packs.pack(success_pieces(list_pieces(first), warnings), budget)

    return await api.answer(request, work)


def _label_name(request: Request) -> str:
    # From the raw path: the decoded one has lost bytes that were not UTF-8.
    raw = request.raw_path.split(b"/")
    given = unquote_to_bytes(raw[-2]).decode("utf-8", "surrogateescape") if len(raw) > 1 else ""
    name = unescape_name(given)
    if not name or any("\ud800" <= character <= "\udfff" for character in name):
        raise ApiError("bad_data", f"invalid label name: {quote(name)}")
    return name


def _limited(items: S, limit: int | None) -> tuple[S, tuple[str, ...]]:
    if limit is None or len(items) <= limit:
        return items, ()
    return items[:limit], (TRUNCATED,)


async def federate(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    """Errors are plain text, as for any page that is scraped."""
    if parameters.malformed:
        return text(f"error parsing form values: {parameters.malformed}", 400)
    escaping, packs = negotiate(request.header("accept")), packer(request)
    received_at = time.monotonic()

    def work(cancelled: threading.Event) -> Body | LargeBody:
        budget = api.engine.budget(None, cancelled, received_at=received_at)
        results = find_newest(
            api.store, parameters.parsed_selectors(), now_ms(), api.engine.lookback_ms, budget
        )
        return packs.pack(federate_pieces(results, api.external_labels, escaping, budget), budget)

    kind = f"text/plain; version=0.0.4; charset=utf-8; escaping={escaping}"
    try:
        return await api.answer(request, work, kind)
    except (BadQueryError, ApiError) as error:
        return text(str(error), 400)


def _with_underscores(name: str) -> str:
    return _NOT_PLAIN.sub("_", name)


def _with_dots(name: str) -> str:
    return (
        name if _PLAIN.fullmatch(name) else _NOT_PLAIN.sub("__", name.replace("_", "__").replace(".", "_dot_"))
    )


def _with_values(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    return "U__" + _NOT_PLAIN.sub(lambda match: f"_{ord(match.group()):x}_", name.replace("_", "__"))


ESCAPINGS: Mapping[str, Callable[[str], str]] = {
    "allow-utf-8": str,
    "underscores": _with_underscores,
    "dots": _with_dots,
    "values": _with_values,
}


def negotiate(accept: str) -> str:
    """The escaping of the Accept header; it may be a parameter of a format that is not served here."""
    escaping = DEFAULT_ESCAPING
    for clause in accept.split(","):
        requested = _ESCAPING.search(clause)
        if requested is not None and requested[1] in ESCAPINGS:
            escaping = requested[1]
        if _OLD_TEXT.match(clause) and ("version=" not in clause or "version=0.0.4" in clause):
            break
    return escaping


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


def federate_pieces(
    newest: dict[Labels, Series], external: Labels, escaping: str, budget: Budget
) -> Iterator[bytes]:
    escape = ESCAPINGS[escaping]
    lines: list[str] = []
    for name, group in groupby(budget.sort(newest, key=lambda labels: (_name(labels), labels)), key=_name):
        metric = escape(name)
        lines.append(f"# TYPE {_quoted(metric)} untyped\n")
        for labels in group:
            series = newest[labels]
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


async def delete_series(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    parameters.well_formed()
    if not parameters.all("match[]"):
        raise ApiError("bad_data", "no match[] parameter provided")
    start, end = parameters.span_ms()

    def work(cancelled: threading.Event) -> None:
        try:
            selectors = parameters.parsed_selectors()  # all of them before anything is deleted
        except BadQueryError as error:
            raise bad("match[]", error) from None
        for matchers in selectors:
            api.store.delete_series(matchers, start, end)

    await api.evaluate(request, work)
    return Response(status=204)


async def clean_tombstones(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    await api.evaluate(request, lambda cancelled: api.store.compact())
    return Response(status=204)


async def snapshot(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    text = parameters.get("skip_head")
    try:
        _ = (
            parse_bool(text) if text else False
        )  # the newest samples are in the same file: they are always included
    except ValueError:
        raise bad("skip_head", f"unable to parse boolean {text!r}") from None
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(8)}"

    await api.evaluate(request, lambda cancelled: api.store.backup(api.store.folder / SNAPSHOTS / name))
    return data_answer({"name": name})
