"""`/api/v1/write`: receives remote write 1.0 and 2.0 from a Prometheus, an agent or vmagent.

Answers as Prometheus does: 204 if all samples are stored, 400 if some cannot be (the sender must not retry),
5xx if the store cannot write now (the sender retries). Unlike Prometheus, the other samples of a 1.0 request
with a refused one are stored. Version 2.0 always reports how much was written.
"""

from __future__ import annotations

import asyncio

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.base.varint import WireError
from gpuscope.history.remote_write.receiver import INVALID, Received, Receiver
from gpuscope.history.store import StoreError
from gpuscope.serve.http.messages import (
    BodyTooLarge,
    ClientDisconnected,
    Header,
    Request,
    Response,
    Route,
    text,
)
from gpuscope.serve.login.authenticator import ClientIdentity
from gpuscope.serve.login.routes import IDENTITY_KEY

MAX_CONCURRENT_WRITES = 4
VERSIONS = {"prometheus.writerequest": 1, "io.prometheus.write.v2.request": 2}
"""The protobuf message that the content type names, and the version it belongs to."""

# Prometheus' own message first: people search for it.
_REASONS = {
    "too_old": "out of bounds: older than late samples are taken",
    "duplicate": "duplicate sample for timestamp: another value is stored for it already",
    "in_future": "out of bounds: timestamp is too far in the future",
    "invalid_labels": "invalid metric name or labels",
    "label_limits": "labels beyond write_max_labels, write_max_label_name_bytes or write_max_label_value_bytes",
    "native_histogram": "native histograms are not stored here",
    "other_node": "this API token is bound to a node: the label instance must be its name or NAME:PORT",
    "scraped_here": "this server reads the target with these labels job and instance itself",
    "no_samples": "TimeSeries must contain at least one sample or histogram",
}
_TOO_OLD_BEYOND_WINDOW = "too old sample: older than out_of_order_time_window"


def write_route(receiver: Receiver) -> Route:
    gate: list[asyncio.Semaphore] = []
    limit = receiver.server_limits.write_max_request_bytes

    async def write(request: Request) -> Response:
        if not gate:  # needs the running loop
            gate.append(asyncio.Semaphore(MAX_CONCURRENT_WRITES))
        version = _version(request)
        if isinstance(version, Response):
            return version
        try:
            packed = await request.body.read(limit)
        except ClientDisconnected:
            return text("the request ended early", 400)
        except BodyTooLarge:
            LIMITS_REACHED.count("write_max_request_bytes")
            return text(f"the request is larger than {limit} bytes (write_max_request_bytes)", 413)
        async with gate[0]:  # after the body: a client that sends slowly must not keep others from writing
            identity: ClientIdentity | None = request.state.get(IDENTITY_KEY)
            node = identity.node if identity is not None else ""
            return await _take(receiver, packed, request.peer, version, node)

    return Route("/api/v1/write", write, ("POST",))


async def _take(receiver: Receiver, packed: bytes, sender: str, version: int, node: str) -> Response:
    def headers(received: Received | None) -> tuple[Header, ...]:
        return _written(received) if version == 2 else ()

    try:
        received = await asyncio.to_thread(receiver.take, packed, sender, version=version, node=node)
    except WireError as error:
        return text(str(error), 400, headers(None))
    except StoreError as error:
        return text(f"not stored: {error}", 503, headers(None))
    # As Prometheus: series of a 1.0 request with invalid labels are dropped and counted, without an error.
    if received.refused.keys() - ({INVALID} if version == 1 else ()):
        return text(_refusals(received), 400, headers(received))
    return Response(status=204, headers=headers(received))


def _written(received: Received | None) -> tuple[Header, ...]:
    """A sample that was stored before counts as written."""
    samples = 0 if received is None else received.accepted + received.repeated
    counts = (("Samples", samples), ("Histograms", 0), ("Exemplars", 0))
    return tuple((f"X-Prometheus-Remote-Write-{what}-Written", str(count)) for what, count in counts)


def _refusals(received: Received) -> str:
    reasons = dict(_REASONS, new_series=f"new series: {received.series_refused}")
    if received.takes_out_of_order:
        reasons["too_old"] = _TOO_OLD_BEYOND_WINDOW
    parts = [f"{reasons.get(why, why)} ({count} refused)" for why, count in received.refused.items()]
    return f"{'; '.join(parts)}; {received.accepted} samples kept"


def _version(request: Request) -> int | Response:
    """1 or 2, or the error response."""
    # Required: a browser can be made to send anything without a content type, but not with this one.
    kind = request.header("content-type").replace(" ", "").lower()
    message = kind.partition("proto=")[2].partition(";")[0].strip('"') or "prometheus.writerequest"
    if kind.partition(";")[0] != "application/x-protobuf" or message not in VERSIONS:
        return text(
            f"content type {kind!r} is not supported; send application/x-protobuf with "
            "proto=prometheus.WriteRequest or proto=io.prometheus.write.v2.Request",
            415,
        )
    encoding = request.header("content-encoding", "snappy").lower()
    if encoding != "snappy":
        return text(f"{encoding!r} is not supported; remote write is compressed with snappy", 415)
    return VERSIONS[message]
