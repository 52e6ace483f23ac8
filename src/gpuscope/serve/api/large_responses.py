"""Large responses: encoded piece by piece in the query threads, as fast as the client reads them.

Between pieces a response holds no thread, so slow clients do not block other queries. But its result stays in
memory: the number of large responses is limited, and each ends with the time limit of its query.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql import PromQLError
from gpuscope.serve.api.responses import LargeBody, error_answer
from gpuscope.serve.http.messages import Response, ResponseAborted

RETRY_SECONDS = "5"


@dataclass(slots=True)
class LargeResponses:
    """Belongs to the event loop."""

    max_responses: int
    sending: int = 0

    def respond(self, body: LargeBody, kind: str, workers: ThreadPoolExecutor) -> Response:
        if self.sending >= self.max_responses:
            body.budget.close()
            LIMITS_REACHED.count("query_max_large_responses")
            refusal = error_answer(
                "unavailable",
                f"{self.max_responses} large responses are being sent (query_max_large_responses); try again",
            )
            refusal.status, refusal.headers = 503, (("retry-after", RETRY_SECONDS),)
            return refusal
        large = _LargeResponse(self, body, workers)
        response = body.answer(kind)
        response.pieces, response.close = large.pieces(), large.close
        return response


class _LargeResponse:
    def __init__(self, running: LargeResponses, body: LargeBody, workers: ThreadPoolExecutor) -> None:
        self._running = running
        self._rest: Iterator[bytes] | None = body.pieces
        self._budget = body.budget
        self._workers = workers
        self._running.sending += 1
        # A client that reads a byte a minute never requests the next piece: a timer frees the result.
        left, loop = body.budget.seconds_left(), asyncio.get_running_loop()
        self._timer = None if left is None else loop.call_later(left, self._release)

    async def pieces(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while self._rest is not None:
            try:
                piece = await loop.run_in_executor(self._workers, next, self._rest, None)
            except PromQLError as error:
                # The head is sent: only a broken connection can show the error.
                raise ResponseAborted(str(error)) from error
            if piece is None:
                return
            yield piece
        raise ResponseAborted("query timed out in sending the response")

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._release()

    def _release(self) -> None:
        if self._rest is not None:
            self._rest = None
            self._budget.close()
            self._running.sending -= 1
