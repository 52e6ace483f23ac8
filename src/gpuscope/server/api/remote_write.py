"""`/api/v1/write`: takes what a Prometheus, an agent or vmagent sends by remote write 1.0.

Answers as Prometheus does: 204 when all was kept, 400 when some samples cannot be (the sender must not try
again), 5xx when the store cannot write now (the sender tries again).
"""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpuscope.exposition.remote_write import WireError
from gpuscope.scrape.receive import Receiver
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
        async with gate[0]:  # bounds how many bodies are in memory
            try:
                packed = await _read(request)
            except ClientDisconnect:
                return _plain(400, "the request ended early")
            if packed is None:
                return _plain(413, f"the request is larger than {MOST_PACKED_BYTES} bytes")
            return await _take(receiver, packed, request.client.host if request.client else "")

    return Route("/api/v1/write", write, methods=["POST"])


async def _take(receiver: Receiver, packed: bytes, sender: str) -> Response:
    try:
        received = await asyncio.to_thread(receiver.take, packed, sender)
    except WireError as error:
        return _plain(400, str(error))
    except StoreError as error:
        return _plain(503, f"not stored: {error}")
    if received.refused:
        reasons = ", ".join(f"{count} {_REASONS.get(why, why)}" for why, count in received.refused.items())
        return _plain(400, f"{received.accepted} samples kept; refused: {reasons}")
    return Response(status_code=204)


def _wrong_kind(request: Request) -> Response | None:
    # It must be said: a browser can be made to send anything without a content type, but not with this one.
    kind = request.headers.get("content-type", "").replace(" ", "").lower()
    message = kind.partition("proto=")[2].partition(";")[0].strip('"') or "prometheus.writerequest"
    if not kind.startswith("application/x-protobuf") or message != "prometheus.writerequest":
        return _plain(
            415, f"content type {kind!r} is not taken; send remote write 1.0 (prometheus.WriteRequest)"
        )
    encoding = request.headers.get("content-encoding", "snappy").lower()
    if encoding != "snappy":
        return _plain(415, f"{encoding!r} is not taken; remote write is compressed with snappy")
    return None


async def _read(request: Request) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_PACKED_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def _plain(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)
