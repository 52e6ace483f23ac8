"""Checks passwords in a few threads of their own, with a limit on failed attempts; and answers refusals.

The limit is per key: some free attempts, then a wait that doubles with each failure. An attempt counts as
failed from its start, so that concurrent attempts all count; success resets the key. Memory is bounded: the
least recently used key is dropped, which costs an attacker `max_keys` attempts, each with bcrypt's time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import math
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.serve.api_types.session_json import ErrorAnswer, LoginAnswer, LogoutAnswer, SessionAnswer
from gpuscope.serve.http.connection_limits import ClientLog, limit_key
from gpuscope.serve.http.messages import Header, Request, RequestGuard, Response, text
from gpuscope.serve.login.private_file import MAX_PASSWORD_LENGTH, digest

MAX_VERIFIED_PASSWORDS = 1000
CHECK_THREADS = 2
MAX_NAME_LENGTH = 128
MAX_ADDRESS_WAIT_SECONDS = 900.0
MAX_USER_WAIT_SECONDS = 60.0
log = logging.getLogger("gpuscope")
LoginJson = ErrorAnswer | SessionAnswer | LoginAnswer | LogoutAnswer


@dataclass(slots=True)
class _Attempts:
    count: int = 0
    allowed_at: float = 0.0
    last_at: float = 0.0


class RateLimit:
    def __init__(
        self,
        *,
        free_attempts: int,
        max_wait_seconds: float,
        first_wait: float = 1.0,
        max_keys: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free_attempts = free_attempts
        self._first_wait = first_wait
        self._max_wait_seconds = max_wait_seconds
        self._max_keys = max_keys
        self._clock = clock
        self._attempts: OrderedDict[Hashable, _Attempts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._attempts))

    def wait(self, key: Hashable) -> float:
        """Seconds until the next attempt is allowed; 0 if it is allowed now."""
        attempts = self._attempts.get(key)
        return 0.0 if attempts is None else max(0.0, attempts.allowed_at - self._clock())

    def count(self, key: Hashable) -> None:
        """Counts an attempt; call `forget` if it succeeds."""
        now = self._clock()
        attempts = self._attempts.pop(key, None)
        # A key without attempts for twice the maximum wait starts anew.
        if attempts is None or now - attempts.last_at > 2 * self._max_wait_seconds:
            attempts = _Attempts()
        attempts.count += 1
        attempts.last_at = now
        if attempts.count >= self._free_attempts:
            doublings = min(attempts.count - self._free_attempts, 30)
            attempts.allowed_at = now + min(self._first_wait * 2**doublings, self._max_wait_seconds)
        self._attempts[key] = attempts
        while len(self._attempts) > self._max_keys:
            self._attempts.popitem(last=False)

    def forget(self, key: Hashable) -> None:
        self._attempts.pop(key, None)


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


def refusal_response(refusal: Refusal, *, setup: bool = False) -> Response:
    body: ErrorAnswer = {"status": "error", "errorType": refusal.kind, "error": refusal.sentence}
    headers: list[Header] = []
    if refusal.status == 401:
        body["login"], body["setup"] = True, setup
        # Bearer, although basic auth works too: a Basic challenge would open the browser's own dialog.
        headers.append(("www-authenticate", 'Bearer realm="gpuscope"'))
    if refusal.wait_seconds:
        headers.append(("retry-after", str(math.ceil(refusal.wait_seconds))))
    return json_response(body, refusal.status, tuple(headers))


def json_response(body: LoginJson, status: int = 200, headers: tuple[Header, ...] = ()) -> Response:
    return Response(orjson.dumps(body), status, "application/json", (("cache-control", "no-store"), *headers))


# Basic auth for the users of a web configuration file, with the login's rate limits and thread pool.

_CHALLENGE = (("www-authenticate", 'Basic realm="gpuscope"'),)
_HASH = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}", re.ASCII)
# Checked for an unknown user, so that response times do not reveal which users exist.
_UNKNOWN_USER_HASH = "$2b$10$XGuZIVrvGF5GIZVL/P2aYO9RhqdFH23dIyILOf//2CHFOCmMdQWye"
MAX_BCRYPT_BYTES = 72
"""bcrypt ignores the bytes after these."""


def password_guard(users: Mapping[Any, Any], limits: Limits) -> RequestGuard:
    import bcrypt

    hashes = {str(user): str(stored) for user, stored in users.items()}
    for user, stored in hashes.items():
        if not _HASH.fullmatch(stored):
            raise UsageError(f"the password of {user[:80]!r} is not a bcrypt hash")

    def check(user: str, password: str) -> bool:
        encoded = password.encode("latin-1")[:MAX_BCRYPT_BYTES]
        try:
            matches = bcrypt.checkpw(encoded, hashes.get(user, _UNKNOWN_USER_HASH).encode("ascii"))
        except ValueError:  # the password contains a NUL
            return False
        return matches and user in hashes

    checker = PasswordChecker(LoginAttempts.from_limits(limits), check, hashes.get)

    async def guard(request: Request, client: str) -> Response | None:
        credentials = _basic_credentials(request.header("authorization"))
        if credentials is None:
            return text("Unauthorized", 401, _CHALLENGE)
        refusal = await checker.refusal(client, *credentials)
        return None if refusal is None else _to_response(refusal)

    return guard


def _to_response(refusal: Refusal) -> Response:
    if refusal.status == 401:
        return text("Unauthorized", 401, _CHALLENGE)
    return text(refusal.sentence, refusal.status, (("retry-after", str(math.ceil(refusal.wait_seconds))),))


def _basic_credentials(header: str) -> tuple[str, str] | None:
    """The user, and the password decoded as Latin-1, which preserves its bytes for bcrypt."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user.decode("utf-8", "replace"), password.decode("latin-1")) if colon else None
