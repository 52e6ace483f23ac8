"""Endpoints about which series there are: series, labels, values of a label, and `/federate`.

`start` and `end` may be left out, and then all of the history counts. Prometheus looks at whole blocks here, so
near the ends of a span it may name a series that has no sample in it; this store does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote_to_bytes

from gpuscope.promql import BadQueryError
from gpuscope.promql.budget import Budget
from gpuscope.promql.labels import quote
from gpuscope.series import Matcher
from gpuscope.server.api.encode import list_pieces, success_pieces
from gpuscope.server.api.federate import federate_pieces, find_newest, negotiate
from gpuscope.server.api.go_values import unescape_name
from gpuscope.server.api.parameters import ApiError, Parameters, bad
from gpuscope.server.api.query_routes import TRUNCATED, now_ms
from gpuscope.server.api.responses import Body, LargeBody, packer
from gpuscope.server.http.messages import Request, Response, text

if TYPE_CHECKING:
    from gpuscope.server.api.embedded import EmbeddedApi

T = TypeVar("T")


async def series(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    asked.well_formed()
    if not asked.all("match[]"):
        raise ApiError("bad_data", "no match[] parameter provided")
    limit, span, packs = asked.limit(), asked.span_ms(), packer(request)

    def work(cancelled: threading.Event) -> Body | LargeBody:
        try:
            selectors = asked.selectors()
        except ApiError as error:
            raise bad("match[]", error) from None
        budget = api.engine.budget(None, cancelled)
        found = api.store.any_series(_checked(selectors, budget), *span)
        first, warnings = _limited(budget.sort(found), limit)
        return packs.pack(success_pieces(list_pieces(map(dict, first)), warnings), budget)

    return await api.answer(request, work)


def _checked(selectors: Iterable[list[Matcher]], budget: Budget) -> Iterator[list[Matcher]]:
    """One may take a tenth of a second to look up: between two, see whether time is up or the client gone."""
    for matchers in selectors:
        budget.check()
        yield matchers


async def labels(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    limit, span = asked.limit(), asked.span_ms()

    def find(selectors: Iterable[list[Matcher]] | None) -> Iterable[str]:
        return api.store.label_names((), *span) if selectors is None else api.store.any_pairs(selectors, *span)

    return await _names(api, request, asked, limit, find)


async def label_values(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    name, limit, span = _label_name(request), asked.limit(), asked.span_ms()

    def find(selectors: Iterable[list[Matcher]] | None) -> Iterable[str]:
        if selectors is None:
            return api.store.label_values(name, (), *span)
        return api.store.any_pairs(selectors, *span).get(name, [])

    return await _names(api, request, asked, limit, find)


async def _names(
    api: EmbeddedApi,
    request: Request,
    asked: Parameters,
    limit: int | None,
    find: Callable[[Iterable[list[Matcher]] | None], Iterable[str]],
) -> Response:
    """What `find` gives for any of the selectors (None: for all series), sorted."""
    packs = packer(request)

    def work(cancelled: threading.Event) -> Body | LargeBody:
        budget = api.engine.budget(None, cancelled)
        selectors = asked.selectors()
        found = find(_checked(selectors, budget) if selectors else None)
        first, warnings = _limited(budget.sort(found), limit)
        return packs.pack(success_pieces(list_pieces(first), warnings), budget)

    return await api.answer(request, work)


def _label_name(request: Request) -> str:
    # The decoded path no longer tells what was no UTF-8 in it.
    raw = request.raw_path.split(b"/")
    given = unquote_to_bytes(raw[-2]).decode("utf-8", "surrogateescape") if len(raw) > 1 else ""
    name = unescape_name(given)
    if not name or any("\ud800" <= one <= "\udfff" for one in name):
        raise ApiError("bad_data", f"invalid label name: {quote(name)}")
    return name


def _limited(found: list[T], limit: int | None) -> tuple[list[T], tuple[str, ...]]:
    if limit is None or len(found) <= limit:
        return found, ()
    return found[:limit], (TRUNCATED,)


async def federate(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    """Its errors are plain text, as those of a page that is scraped."""
    if asked.malformed:
        return text(f"error parsing form values: {asked.malformed}", 400)
    escaping, packs = negotiate(request.header("accept")), packer(request)

    def work(cancelled: threading.Event) -> Body | LargeBody:
        budget = api.engine.budget(None, cancelled)
        found = find_newest(api.store, asked.parsed_selectors(), now_ms(), api.engine.lookback_ms, budget)
        return packs.pack(federate_pieces(found, api.external_labels, escaping, budget), budget)

    kind = f"text/plain; version=0.0.4; charset=utf-8; escaping={escaping}"
    try:
        return await api.answer(request, work, kind)
    except (BadQueryError, ApiError) as error:
        return text(str(error), 400)
