"""Checks passwords: known ones at once, others by bcrypt in a small pool of threads, within rate limits.

The same for the login form, basic auth and the users of a web configuration file. Every attempt counts against
the client's address and the user until it succeeds. A password that was right is remembered by a keyed digest,
which a change of the stored hash makes worthless: proven users never wait behind strangers.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.server.http.addresses import limit_key
from gpuscope.server.http.client_log import ClientLog
from gpuscope.server.login.credentials import LONGEST_PASSWORD, digest
from gpuscope.server.login.rate_limit import RateLimit

MAX_PASSWORDS_KNOWN = 1000
CHECKED_AT_ONCE = 2
MAX_NAME_LENGTH = 128
MAX_WAIT_OF_ADDRESS = 900.0
MAX_WAIT_OF_USER = 60.0

log = logging.getLogger("gpuscope")


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    kind: str
    sentence: str
    wait_seconds: float = 0.0


WRONG = Refusal(401, "unauthorized", "wrong user or password")
CROWDED = Refusal(503, "unavailable", "too many are logging in now; try again in a moment", 2.0)


def too_many(wait: float) -> Refusal:
    return Refusal(429, "too_many_requests", f"too many attempts; try again in {int(wait) + 1} s", wait)


@dataclass(slots=True)
class Attempts:
    """Wrong secrets by client address and by user; the log says whose."""

    limits: Limits
    by_address: RateLimit
    by_user: RateLimit
    log: ClientLog

    @classmethod
    def of(cls, limits: Limits) -> Attempts:
        return cls(
            limits,
            RateLimit(free=limits.max_password_attempts_per_address, longest_wait=MAX_WAIT_OF_ADDRESS),
            RateLimit(free=limits.max_password_attempts_per_user, longest_wait=MAX_WAIT_OF_USER),
            ClientLog(log, limits.max_client_log_lines),
        )

    def wait_of(self, client: str, user: str | None = None) -> float:
        """Seconds until this one may try again; 0 is now."""
        address = self.by_address.wait(limit_key(client))
        name = self.by_user.wait(digest(user)) if user is not None else 0.0
        if address:
            LIMITS_REACHED.count("max_password_attempts_per_address")
        elif name:
            LIMITS_REACHED.count("max_password_attempts_per_user")
        return max(address, name)

    def count(self, client: str, user: str | None = None) -> None:
        self.by_address.count(limit_key(client))
        if user is not None:
            self.by_user.count(digest(user))

    def forget(self, client: str, user: str | None = None) -> None:
        self.by_address.forget(limit_key(client))
        if user is not None:
            self.by_user.forget(digest(user))

    def tell(self, client: str, what: str) -> None:
        self.log.warning("refused logins", "a login from %s was refused: %s", limit_key(client), what)


@dataclass(slots=True)
class PasswordChecks:
    attempts: Attempts
    check: Callable[[str, str], bool]  # slow: bcrypt
    stored_of: Callable[[str], str | None]  # the stored hash, so that a change of it is seen
    _key: bytes = field(default_factory=lambda: os.urandom(32))
    _proven: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(CHECKED_AT_ONCE, thread_name_prefix="gpuscope-password")
    )
    _waiting: int = 0

    async def refusal(self, client: str, user: str, password: str) -> Refusal | None:
        """None if the password is right."""
        if len(user) > MAX_NAME_LENGTH or len(password) > LONGEST_PASSWORD:
            return WRONG
        mark = self._mark(user, password)
        if mark in self._proven:
            self._proven.move_to_end(mark)
            return None
        if wait := self.attempts.wait_of(client, user):
            return too_many(wait)
        if self._waiting >= self.attempts.limits.max_password_queue:
            LIMITS_REACHED.count("max_password_queue")
            return CROWDED
        self.attempts.count(client, user)
        if not await self._slowly(user, password):
            self.attempts.tell(client, "wrong user or password")
            return WRONG
        self.attempts.forget(client, user)
        self._proven[mark] = None
        while len(self._proven) > MAX_PASSWORDS_KNOWN:
            self._proven.popitem(last=False)
        return None

    def _mark(self, user: str, password: str) -> bytes:
        parts = repr((user, password, self.stored_of(user)))
        return hmac.digest(self._key, parts.encode("utf-8", "backslashreplace"), "sha256")

    async def _slowly(self, user: str, password: str) -> bool:
        """In threads of its own: strangers must not take all cores, nor the threads of queries."""
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self.check, user, password)
        finally:
            self._waiting -= 1
