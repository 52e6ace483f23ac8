"""`/api/v1/write`: takes what a Prometheus, an agent or vmagent sends by remote write 1.0.

Answers as Prometheus does: 204 when all was kept, 400 when some samples cannot be (the sender must not try
again), 5xx when the store cannot write now (the sender tries again).
"""

from __future__ import annotations

import asyncio

from gpuscope.exposition.remote_write import WireError
from gpuscope.scrape.receive import Receiver
from gpuscope.server.http.messages import BodyTooLarge, ClientLeft, Request, Response, text
from gpuscope.server.http.routing import Route
from gpuscope.store import StoreError

MOST_PACKED_BYTES = 16 << 20
MOST_AT_ONCE = 4

_REASONS = {
    "too_old": "too old, or out of order beyond what is kept open",
    "duplicate": "another value for a time that has one already",
    "in_future": "too far in the future",
    "invalid_labels": "labels that cannot be stored",
    "native_histogram": "native histograms, which are not stored here",
}


def write_route(receiver: Receiver) -> Route:
    gate: list[asyncio.Semaphore] = []

    async def write(request: Request) -> Response:
        if not gate:  # needs the running loop
            gate.append(asyncio.Semaphore(MOST_AT_ONCE))
        refusal = _wrong_kind(request)
        if refusal is not None:
            return refusal
        try:
            packed = await request.body.read(MOST_PACKED_BYTES)
        except ClientLeft:
            return text("the request ended early", 400)
        except BodyTooLarge:
            return text(f"the request is larger than {MOST_PACKED_BYTES} bytes", 413)
        async with gate[0]:  # after the body: a client that sends slowly must not keep others from writing
            return await _take(receiver, packed, request.peer)

    return Route("/api/v1/write", write, ("POST",))


async def _take(receiver: Receiver, packed: bytes, sender: str) -> Response:
    try:
        received = await asyncio.to_thread(receiver.take, packed, sender)
    except WireError as error:
        return text(str(error), 400)
    except StoreError as error:
        return text(f"not stored: {error}", 503)
    if received.refused:
        reasons = ", ".join(f"{count} {_REASONS.get(why, why)}" for why, count in received.refused.items())
        return text(f"{received.accepted} samples kept; refused: {reasons}", 400)
    return Response(status=204)


def _wrong_kind(request: Request) -> Response | None:
    # It must be said: a browser can be made to send anything without a content type, but not with this one.
    kind = request.header("content-type").replace(" ", "").lower()
    message = kind.partition("proto=")[2].partition(";")[0].strip('"') or "prometheus.writerequest"
    if not kind.startswith("application/x-protobuf") or message != "prometheus.writerequest":
        return text(f"content type {kind!r} is not taken; send remote write 1.0 (prometheus.WriteRequest)", 415)
    encoding = request.header("content-encoding", "snappy").lower()
    if encoding != "snappy":
        return text(f"{encoding!r} is not taken; remote write is compressed with snappy", 415)
    return None
