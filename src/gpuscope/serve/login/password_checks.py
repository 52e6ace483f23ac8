"""Checks passwords with bcrypt in a small thread pool, within rate limits, and caches verified ones.

Used by the login form, basic auth and the users of a web configuration file. Each attempt counts against the
client's address and the user until it succeeds. The cache key includes the stored hash, so a changed password
invalidates it; verified users never wait for the checks of unknown clients.
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

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.serve.http.addresses import limit_key
from gpuscope.serve.http.client_log import ClientLog
from gpuscope.serve.login.credentials import MAX_PASSWORD_LENGTH, digest
from gpuscope.serve.login.rate_limit import RateLimit

MAX_VERIFIED_PASSWORDS = 1000
CHECK_THREADS = 2
MAX_NAME_LENGTH = 128
MAX_ADDRESS_WAIT_SECONDS = 900.0
MAX_USER_WAIT_SECONDS = 60.0

log = logging.getLogger("gpuscope")


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    kind: str
    sentence: str
    wait_seconds: float = 0.0


WRONG = Refusal(401, "unauthorized", "wrong user or password")
QUEUE_FULL = Refusal(503, "unavailable", "too many logins in progress; try again", 2.0)


def too_many(wait: float) -> Refusal:
    return Refusal(429, "too_many_requests", f"too many attempts; try again in {int(wait) + 1} s", wait)


@dataclass(slots=True)
class LoginAttempts:
    """Counts and logs failed attempts by client address and by user."""

    limits: Limits
    by_address: RateLimit
    by_user: RateLimit
    log: ClientLog

    @classmethod
    def from_limits(cls, limits: Limits) -> LoginAttempts:
        return cls(
            limits,
            RateLimit(
                free_attempts=limits.max_password_attempts_per_address,
                max_wait_seconds=MAX_ADDRESS_WAIT_SECONDS,
            ),
            RateLimit(
                free_attempts=limits.max_password_attempts_per_user, max_wait_seconds=MAX_USER_WAIT_SECONDS
            ),
            ClientLog(log, limits.max_client_log_lines),
        )

    def wait_seconds_of(self, client: str, user: str | None = None) -> float:
        """Seconds until the next attempt is allowed; 0 if it is allowed now."""
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

    def log_refusal(self, client: str, what: str) -> None:
        self.log.warning("refused logins", "refused a login from %s: %s", limit_key(client), what)


@dataclass(slots=True)
class PasswordChecker:
    attempts: LoginAttempts
    verify: Callable[[str, str], bool]  # slow: bcrypt
    stored_of: Callable[[str], str | None]  # returns the user's stored hash
    _key: bytes = field(default_factory=lambda: os.urandom(32))
    _verified: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(CHECK_THREADS, thread_name_prefix="gpuscope-password")
    )
    _waiting: int = 0

    async def refusal(self, client: str, user: str, password: str) -> Refusal | None:
        """Returns None if the password is correct."""
        if len(user) > MAX_NAME_LENGTH or len(password) > MAX_PASSWORD_LENGTH:
            return WRONG
        cache_key = self._cache_key(user, password)
        if cache_key in self._verified:
            self._verified.move_to_end(cache_key)
            return None
        if wait := self.attempts.wait_seconds_of(client, user):
            return too_many(wait)
        if self._waiting >= self.attempts.limits.max_password_queue:
            LIMITS_REACHED.count("max_password_queue")
            return QUEUE_FULL
        self.attempts.count(client, user)
        if not await self._verify_in_pool(user, password):
            self.attempts.log_refusal(client, "wrong user or password")
            return WRONG
        self.attempts.forget(client, user)
        self._verified[cache_key] = None
        while len(self._verified) > MAX_VERIFIED_PASSWORDS:
            self._verified.popitem(last=False)
        return None

    def _cache_key(self, user: str, password: str) -> bytes:
        parts = repr((user, password, self.stored_of(user)))
        return hmac.digest(self._key, parts.encode("utf-8", "backslashreplace"), "sha256")

    async def _verify_in_pool(self, user: str, password: str) -> bool:
        """Uses a pool of its own, so that wrong passwords occupy neither all cores nor the query threads."""
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self.verify, user, password)
        finally:
            self._waiting -= 1
