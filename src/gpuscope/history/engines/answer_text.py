"""Splits the JSON text of a large answer into batches of elements while it arrives, within a memory budget.

`SeriesText` is for the results of queries in the form that Prometheus, VictoriaMetrics, Thanos and Mimir write;
its batches are text. `ListText` is for any other list; its batches are decoded. What is around the elements is
the frame, a JSON document of its own. Neither the text nor the decoded JSON is in memory as a whole.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import threading
import time
from typing import Any, Final, NoReturn, Protocol, TypeVar

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.engines.query_engine import EngineResultTooLarge

MAX_ELEMENT_BYTES: Final = 1 << 20
"""Of a series with its points, or of the frame; 11,000 points, Prometheus' limit, have 300 kB."""
BATCH_BYTES: Final = 1 << 17
"""Read and decoded in 2 ms, in which an event loop does nothing else."""
ELEMENT_START: Final = b'{"metric":'

# Neither can be inside a string of valid JSON: a quote there has a backslash before it.
_FIRST: Final = b"[" + ELEMENT_START
_NEXT: Final = b"," + ELEMENT_START
_JSON: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\r\n,]*")

Batch_co = TypeVar("Batch_co", covariant=True)


class BatchText(Protocol[Batch_co]):
    """What `SeriesText` and `ListText` have in common."""

    def feed(self, piece: bytes) -> Batch_co:
        """The elements that are complete; empty if there is none."""
        ...

    def finish(self) -> tuple[Batch_co, bytes]:
        """The last elements, and the frame."""
        ...


class SeriesText:
    def __init__(self, batch_bytes: int = BATCH_BYTES) -> None:
        self._batch_bytes = batch_bytes
        self._frame = b""
        self._text = bytearray()
        self._has_elements = False

    def feed(self, piece: bytes) -> bytes:
        """All elements that are complete, separated by commas; empty if there is none."""
        self._text += piece
        if not self._has_elements:
            begin = self._text.find(_FIRST)
            if begin >= 0:
                self._has_elements = True
                self._frame = bytes(self._text[: begin + 1])
                del self._text[: begin + 1]
        end = self._text.rfind(_NEXT) if self._has_elements and len(self._text) >= self._batch_bytes else -1
        if end < 0:
            check_element(len(self._text))
            return b""
        batch = bytes(self._text[:end])
        del self._text[: end + 1]
        return batch

    def finish(self) -> tuple[bytes, bytes]:
        """The last elements and the frame, in which the list is empty. ValueError if the text is not JSON."""
        if not self._has_elements:
            return b"", bytes(self._text)
        last = self._text.rfind(_NEXT) + 1
        text = self._text[last:].decode()
        _, length = _decode(text, 0)
        end = last + len(text[:length].encode())
        return bytes(self._text[:end]), self._frame + bytes(self._text[end:])


class ListText:
    """`key` is that of the list, for example `data`."""

    def __init__(self, key: str, batch_bytes: int = BATCH_BYTES) -> None:
        self._batch_bytes = batch_bytes
        self._begin = re.compile(rf'"{key}"[ \t\r\n]*:[ \t\r\n]*\[')
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._frame = ""
        self._is_inside = False

    def feed(self, piece: bytes) -> list[Any]:
        self._text += self._utf8.decode(piece)
        if not self._is_inside and not self._frame:
            begin = self._begin.search(self._text)
            if begin is not None:
                self._is_inside = True
                self._frame, self._text = self._text[: begin.end()], self._text[begin.end() :]
        elements = self._take() if self._is_inside and len(self._text) >= self._batch_bytes else []
        check_element(len(self._text))
        return elements

    def finish(self) -> tuple[list[Any], bytes]:
        elements = self._take() if self._is_inside else []
        if self._is_inside:
            raise ValueError("the list has no end")
        return elements, (self._frame + self._text).encode()

    def _take(self) -> list[Any]:
        """Decodes the elements that are complete."""
        elements: list[Any] = []
        text, at = self._text, 0
        while True:
            begin = _end_of_space(text, at)
            if text[begin : begin + 1] == "]":
                at, self._is_inside = begin, False
                break
            try:
                element, end = _decode(text, begin)
            except ValueError:
                break  # not complete; if it is wrong, it stays until the end
            if end == len(text):
                break  # a number may have more digits
            elements.append(element)
            at = end
        self._text = text[at:]
        return elements


def _end_of_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _decode(text: str, at: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, at)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_element(size: int) -> None:
    if size > MAX_ELEMENT_BYTES:
        raise EngineResultTooLarge(
            f"a part of the answer is larger than {MAX_ELEMENT_BYTES} bytes, or the answer is not in the form "
            "that Prometheus writes"
        )


# The memory that answers of an engine take: one budget for all that are read at the same time.
#
# A share grows while its answer is read, and is released when nobody uses the result any more. The sizes are
# estimates, a little above what CPython takes. Readers are in several threads with event loops of their own.

WAIT_SECONDS: Final = 10.0
"""For answers that others read, as queries of the store wait (`query_max_total_samples`)."""
_POLL_SECONDS: Final = 0.05


class AnswerMemory:
    def __init__(self, max_bytes: int = Limits().engine_max_answers_bytes) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        return self._held

    def share(self) -> MemoryShare:
        return MemoryShare(self)

    def take(self, count: int) -> bool:
        """Also gives back: a count may be negative."""
        with self._lock:
            if count > 0 and self._held + count > self.max_bytes:
                return False
            self._held += count
            return True


class MemoryShare:
    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self.held_bytes = 0

    @property
    def max_bytes(self) -> int:
        return self._memory.max_bytes

    def resize(self, count: int) -> bool:
        """False, and no change, if the budget does not have the difference."""
        if not self._memory.take(count - self.held_bytes):
            return False
        self.held_bytes = count
        return True

    async def add(self, count: int) -> None:
        """Waits for other shares to be released; EngineResultTooLarge if that takes too long or cannot help."""
        ends_at = time.monotonic() + WAIT_SECONDS
        while not self.resize(self.held_bytes + count):
            if self.held_bytes + count > self.max_bytes or time.monotonic() >= ends_at:
                self.refuse()
            await asyncio.sleep(_POLL_SECONDS)

    def refuse(self) -> NoReturn:
        LIMITS_REACHED.count("engine_max_answers_bytes")
        raise EngineResultTooLarge(
            f"the answer, with others that are read, takes more than {self.max_bytes} bytes of memory "
            "(engine_max_answers_bytes)"
        )

    def release(self) -> None:
        self.resize(0)
