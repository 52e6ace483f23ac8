"""The rate at which a client receives a response, measured only while the write buffer is full.

A window is `client_stall_timeout` of such waiting, possibly in many short waits: a client cannot extend the
window by receiving a few bytes at a time. Each response starts a new window.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.base.limits import Limits


@dataclass(slots=True)
class ResponseRate:
    written: int = 0  # bytes passed to the transport, all responses of the connection
    _received_before: int = 0  # bytes received by the client before this window
    _waited: float = 0.0
    _waiting_since: float = 0.0

    def begin_response(self) -> None:
        self._received_before, self._waited = self.written, 0.0

    def begin_wait(self, now: float, limits: Limits) -> float:
        """Returns the time at which the window ends."""
        self._waiting_since = now
        return now + max(0.0, limits.client_stall_timeout - self._waited)

    def end_wait(self, now: float) -> None:
        self._waited += now - self._waiting_since

    def is_fast_enough(self, unsent: int, now: float, limits: Limits) -> bool:
        """Called at the end of a window; starts the next one if the client was fast enough."""
        received = self.written - unsent
        if received - self._received_before < limits.min_response_rate * limits.client_stall_timeout:
            return False
        self._received_before, self._waited, self._waiting_since = received, 0.0, now
        return True
