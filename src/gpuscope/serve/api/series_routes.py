"""Endpoints that list series: series, labels, label values, and `/federate`.

Without `start` and `end` the whole history counts. Prometheus looks at whole blocks here, so near the ends of a
time range it may list a series that has no sample in it; this store does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote_to_bytes

from gpuscope.history.promql import BadQueryError
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.labels import quote
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Matcher
from gpuscope.serve.api.encode import labels_pieces, list_pieces, success_pieces
from gpuscope.serve.api.federate import federate_pieces, find_newest, negotiate
from gpuscope.serve.api.go_values import unescape_name
from gpuscope.serve.api.parameters import ApiError, Parameters, bad
from gpuscope.serve.api.query_routes import TRUNCATED, now_ms
from gpuscope.serve.api.responses import Body, LargeBody, packer
from gpuscope.serve.http.messages import Request, Response, text

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi

S = TypeVar("S", LabelColumns, list[str])
MAX_SMALL_VALUES = 2_000
"""Values of a label, known and sorted, that are answered at once: a thread would take longer."""


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
        found = api.store.any_series(_checked(selectors, budget), *span, budget.admit)
        order = found.order(partial(budget.check, "sorting"))
        first, warnings = _limited(found.take(order), limit)
        return packs.pack(success_pieces(labels_pieces(first), warnings), budget)

    return await api.answer(request, work)


def _checked(selectors: Iterable[list[Matcher]], budget: Budget) -> Iterator[list[Matcher]]:
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
        found = find(_checked(selectors, budget) if selectors else None, budget)
        first, warnings = _limited(budget.sort(found), limit)
        return packs.pack(success_pieces(list_pieces(first), warnings), budget)

    return await api.answer(request, work)


def _label_name(request: Request) -> str:
    # From the raw path: the decoded one has lost bytes that were not UTF-8.
    raw = request.raw_path.split(b"/")
    given = unquote_to_bytes(raw[-2]).decode("utf-8", "surrogateescape") if len(raw) > 1 else ""
    name = unescape_name(given)
    if not name or any("\ud800" <= one <= "\udfff" for one in name):
        raise ApiError("bad_data", f"invalid label name: {quote(name)}")
    return name


def _limited(found: S, limit: int | None) -> tuple[S, tuple[str, ...]]:
    if limit is None or len(found) <= limit:
        return found, ()
    return found[:limit], (TRUNCATED,)


async def federate(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    """Errors are plain text, as for any page that is scraped."""
    if parameters.malformed:
        return text(f"error parsing form values: {parameters.malformed}", 400)
    escaping, packs = negotiate(request.header("accept")), packer(request)
    received_at = time.monotonic()

    def work(cancelled: threading.Event) -> Body | LargeBody:
        budget = api.engine.budget(None, cancelled, received_at=received_at)
        found = find_newest(api.store, parameters.parsed_selectors(), now_ms(), api.engine.lookback_ms, budget)
        return packs.pack(federate_pieces(found, api.external_labels, escaping, budget), budget)

    kind = f"text/plain; version=0.0.4; charset=utf-8; escaping={escaping}"
    try:
        return await api.answer(request, work, kind)
    except (BadQueryError, ApiError) as error:
        return text(str(error), 400)
