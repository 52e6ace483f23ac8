"""Responses in Prometheus' format: JSON with status, data, annotations and errors, compressed on request.

A body is compressed by the thread that encodes it: on the event loop every other client would wait for that.
Small bodies are whole; a large one (`LargeBody`) is encoded and compressed piece by piece while it is sent,
so that it is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import cramjam

from gpuscope.history.promql.budget import Budget
from gpuscope.serve.api.encode import dump_json, failure, success
from gpuscope.serve.api.parameters import STATUS_CODES
from gpuscope.serve.http.messages import Header, Request, Response

JSON = "application/json"
# Ten packets, which a new connection sends at once: a smaller response would not arrive any sooner.
MIN_PACKED_BYTES = 14_000
# Of range answers cramjam's level 1 makes about a third, in zlib's time for 14 kB and in three quarters of that
# from 0.3 MB on; zlib's level 6 makes a tenth less of them and takes ten times as long.
PACKING_LEVEL = 1
MAX_WHOLE_BYTES = 1 << 20
"""A body up to this size is encoded whole."""


_VARIES = ("vary", "Accept-Encoding")
_PACKED: dict[str, tuple[Header, ...]] = {
    "": (_VARIES,),
    "gzip": (_VARIES, ("content-encoding", "gzip")),
    "deflate": (_VARIES, ("content-encoding", "deflate")),
}


@dataclass(slots=True)
class Body:
    content: bytes
    encoding: str = ""

    def answer(self, kind: str = JSON) -> Response:
        return Response(self.content, 200, kind, _PACKED[self.encoding])


@dataclass(slots=True)
class LargeBody:
    """Only its beginning is encoded yet; `pieces` checks the query's budget before each piece."""

    pieces: Iterator[bytes]
    encoding: str
    budget: Budget

    def answer(self, kind: str = JSON) -> Response:
        return Response(b"", 200, kind, _PACKED[self.encoding])


@dataclass(frozen=True, slots=True)
class Packer:
    """The compression of one client's response."""

    encoding: str

    def pack(self, pieces: Iterable[bytes], budget: Budget) -> Body | LargeBody:
        begin: list[bytes] = []
        size = 0
        rest = iter(pieces)
        for piece in rest:
            begin.append(piece)
            size += len(piece)
            if size > MAX_WHOLE_BYTES:
                pieces = _watched(chain(begin, rest), budget)
                return LargeBody(self._compressed(pieces), self.encoding, budget)
        budget.close()
        return self.whole(b"".join(begin))

    def whole(self, content: bytes) -> Body:
        if not self.encoding or len(content) < MIN_PACKED_BYTES:
            return Body(content)
        compress = cramjam.gzip.compress if self.encoding == "gzip" else cramjam.zlib.compress
        return Body(bytes(compress(content, PACKING_LEVEL)), self.encoding)

    def _compressed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if not self.encoding:
            yield from pieces
            return
        kind = cramjam.gzip if self.encoding == "gzip" else cramjam.zlib
        compressor = kind.Compressor(PACKING_LEVEL)
        for piece in pieces:
            compressor.compress(piece)
            yield bytes(compressor.flush())
        yield bytes(compressor.finish())


def _watched(pieces: Iterable[bytes], budget: Budget) -> Iterator[bytes]:
    for piece in pieces:
        budget.check("sending the answer")
        yield piece


def packer(request: Request) -> Packer:
    """The first of gzip and deflate in Accept-Encoding."""
    # Weights are not parsed, as in Prometheus: "gzip;q=0" is not "gzip", so the body is not compressed.
    for named in request.header("accept-encoding").split(","):
        if named.strip() in ("gzip", "deflate"):
            return Packer(named.strip())
    return Packer("")


def data_bytes(value: object, warnings: Iterable[str] = ()) -> bytes:
    return success(dump_json(value), tuple(warnings))


def data_answer(value: object, warnings: Iterable[str] = ()) -> Response:
    return Response(data_bytes(value, warnings), 200, JSON)


def error_answer(error_type: str, message: str) -> Response:
    message = message.encode("utf-8", "replace").decode()  # it may quote bytes that are not UTF-8
    return Response(failure(error_type, message), STATUS_CODES.get(error_type, 500), JSON)
