"""How fast a client takes an answer, counted only over the time it kept us waiting.

A window is `client_stall_timeout` of waiting, which may be many short waits: a client that takes a little each
time to restart a clock gains nothing. A new answer begins a new window.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.limits import Limits


@dataclass(slots=True)
class Pace:
    written: int = 0  # bytes handed to the socket, all answers of the connection
    _taken_before: int = 0  # of them, taken by the client before this window
    _waited: float = 0.0
    _waiting_since: float = 0.0

    def begin_answer(self) -> None:
        self._taken_before, self._waited = self.written, 0.0

    def begin_to_wait(self, now: float, limits: Limits) -> float:
        """When the window ends."""
        self._waiting_since = now
        return now + max(0.0, limits.client_stall_timeout - self._waited)

    def end_to_wait(self, now: float) -> None:
        self._waited += now - self._waiting_since

    def is_fast_enough(self, unsent: int, now: float, limits: Limits) -> bool:
        """At the end of a window; if so, the next one begins."""
        taken = self.written - unsent
        if taken - self._taken_before < limits.min_answer_rate * limits.client_stall_timeout:
            return False
        self._taken_before, self._waited, self._waiting_since = taken, 0.0, now
        return True
