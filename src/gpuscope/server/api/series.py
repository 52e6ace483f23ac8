"""Endpoints about which series there are: series, labels, values of a label, and `/federate`.

`start` and `end` may be left out, and then all of the history counts. Prometheus looks at whole blocks here, so
near the ends of a span it may name a series that has no sample in it; this store does not.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote_to_bytes

from gpuscope.promql import BadQueryError
from gpuscope.promql.labels import quote
from gpuscope.promql.written import parse_selector
from gpuscope.server.api.answers import Body, data_bytes, packer
from gpuscope.server.api.federate import federate_text, negotiate
from gpuscope.server.api.go_values import unescape_name
from gpuscope.server.api.parameters import ApiError, Parameters, bad
from gpuscope.server.api.queries import TRUNCATED, now_ms
from gpuscope.server.http.messages import Request, Response, text

if TYPE_CHECKING:
    from gpuscope.server.api.embedded import EmbeddedApi

T = TypeVar("T")


async def series(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    asked.well_formed()
    if not asked.all("match[]"):
        raise ApiError("bad_data", "no match[] parameter provided")
    limit, span, pack = asked.limit(), asked.span_ms(), packer(request)
    try:
        selectors = asked.selectors()
    except ApiError as error:
        raise bad("match[]", error) from None

    def work(cancelled: threading.Event) -> Body:
        found = {labels for matchers in selectors for labels in api.store.series(matchers, *span)}
        first, warnings = _limited(sorted(found), limit)
        return pack(data_bytes([dict(labels) for labels in first], warnings))

    return (await api.evaluate(request, work)).answer()


async def labels(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    limit, span, selectors, pack = asked.limit(), asked.span_ms(), asked.selectors() or [[]], packer(request)

    def work(cancelled: threading.Event) -> Body:
        found = {name for matchers in selectors for name in api.store.label_names(matchers, *span)}
        return pack(data_bytes(*_limited(sorted(found), limit)))

    return (await api.evaluate(request, work)).answer()


async def label_values(api: EmbeddedApi, request: Request, asked: Parameters) -> Response:
    name = _label_name(request)
    limit, span, selectors, pack = asked.limit(), asked.span_ms(), asked.selectors() or [[]], packer(request)

    def work(cancelled: threading.Event) -> Body:
        found = {value for matchers in selectors for value in api.store.label_values(name, matchers, *span)}
        return pack(data_bytes(*_limited(sorted(found), limit)))

    return (await api.evaluate(request, work)).answer()


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
    try:
        selectors = [parse_selector(one) for one in asked.all("match[]")]
    except BadQueryError as error:
        return text(str(error), 400)
    escaping, pack = negotiate(request.header("accept")), packer(request)

    def work(cancelled: threading.Event) -> Body:
        lookback, external = api.engine.lookback_ms, api.external_labels
        return pack(federate_text(api.store, selectors, now_ms(), lookback, external, escaping))

    kind = f"text/plain; version=0.0.4; charset=utf-8; escaping={escaping}"
    return (await api.evaluate(request, work)).answer(kind)
