"""Answers in Prometheus' shape: JSON with status, data, notes and errors, compressed where asked and worth it.

`pack` is for the thread that made the bytes: compressing a large answer takes longer than most queries, and on
the event loop every other client would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import cramjam
import orjson

from gpuscope.server.api.encode import failure, success
from gpuscope.server.api.parameters import STATUS_CODES
from gpuscope.server.http.messages import Header, Request, Response

JSON = "application/json"
# Ten packets, which a new connection sends at once: below it nobody has a smaller answer any sooner.
SMALLEST_PACKED_BYTES = 14_000
# Of range answers cramjam's level 1 makes about a third, in zlib's time for 14 kB and in three quarters of that
# from 0.3 MB on; zlib's level 6 makes a tenth less of them and takes ten times as long.
PACKING_LEVEL = 1


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


def packer(request: Request) -> Callable[[bytes], Body]:
    """How this client's answer is packed: the first of gzip and deflate it names, as Prometheus reads it."""
    # Like Prometheus no weights are understood: "gzip;q=0" is not "gzip", so it is not packed.
    for named in request.header("accept-encoding").split(","):
        encoding = named.strip()
        if encoding in ("gzip", "deflate"):
            break
    else:
        return Body

    def pack(content: bytes) -> Body:
        if len(content) < SMALLEST_PACKED_BYTES:
            return Body(content)
        compress = cramjam.gzip.compress if encoding == "gzip" else cramjam.zlib.compress
        return Body(bytes(compress(content, PACKING_LEVEL)), encoding)

    return pack


def data_bytes(value: object, warnings: Iterable[str] = ()) -> bytes:
    return success(orjson.dumps(value), tuple(warnings))


def data_answer(value: object, warnings: Iterable[str] = ()) -> Response:
    return Response(data_bytes(value, warnings), 200, JSON)


def error_answer(error_type: str, message: str) -> Response:
    message = message.encode("utf-8", "replace").decode()  # it may quote what was no UTF-8
    return Response(failure(error_type, message), STATUS_CODES.get(error_type, 500), JSON)
