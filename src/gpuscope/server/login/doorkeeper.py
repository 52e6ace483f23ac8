"""Who is asking: by session cookie, API token, password, or the word of a reverse proxy we believe.

Answers an `Identity`, or a `Refusal` that says the same whether the user exists or not. A password costs
bcrypt's time once and is then known by its digest, which a change of the password makes worthless.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import os
import unicodedata
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuscope.server.login.asked import Asked, limit_key
from gpuscope.server.login.rate_limit import RateLimit
from gpuscope.server.login.secrets_at_rest import LONGEST_PASSWORD, digest
from gpuscope.server.login.sessions import Sessions
from gpuscope.server.login.users import Users

log = logging.getLogger("gpuscope")

COOKIE = "gpuscope_session"
SECURE_COOKIE = "__Host-gpuscope_session"
"""Under TLS: a browser takes this name only with Secure, for this very host."""

MOST_COOKIES_TRIED = 8
MOST_PASSWORDS_KNOWN = 1000
PASSWORDS_AT_ONCE = 2
MOST_PASSWORDS_WAITING = 32
LONGEST_NAME = 128
LONGEST_HEADER = 8192

Via = Literal["session", "token", "password", "proxy"]


@dataclass(frozen=True, slots=True)
class Identity:
    user: str
    via: Via
    writes: bool = True

    @property
    def is_ambient(self) -> bool:
        """True if a browser attaches it to every request by itself, also to those another site caused."""
        return self.via in ("session", "proxy")


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    kind: str
    sentence: str
    wait_seconds: float = 0.0


UNKNOWN = Refusal(401, "unauthorized", "log in, or send an API token or a user's password")
WRONG = Refusal(401, "unauthorized", "wrong user or password")
CROWDED = Refusal(503, "unavailable", "too many are logging in now; try again in a moment", 2.0)


@dataclass(slots=True)
class Doorkeeper:
    users: Users
    sessions: Sessions
    by_address: RateLimit
    by_user: RateLimit
    proxy_header: str = ""
    _key: bytes = field(default_factory=lambda: os.urandom(32))
    _proven: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    _gate: asyncio.Semaphore | None = None
    _waiting: int = 0

    async def identify(self, asked: Asked) -> Identity | Refusal:
        if identity := self._by_proxy(asked):
            return identity
        authorization = asked.header("authorization")
        if authorization is None or len(authorization) > LONGEST_HEADER:
            return Refusal(400, "bad_data", "the Authorization header is not one")
        if authorization:
            return await self._by_authorization(asked, authorization)
        for session_id in session_ids(asked):
            if user := self.sessions.user_of(session_id):
                return Identity(user, "session")
        return UNKNOWN

    def _by_proxy(self, asked: Asked) -> Identity | None:
        if not self.proxy_header or not asked.through_proxy:
            return None
        name = asked.header(self.proxy_header)
        if not name:
            return None
        name = name.encode("latin-1", "replace").decode("utf-8", "replace")
        if len(name) > LONGEST_NAME or not name.isprintable():
            return None
        return Identity(name, "proxy")

    async def _by_authorization(self, asked: Asked, header: str) -> Identity | Refusal:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() == "bearer":
            token = self.users.token(rest.strip())
            if token is None:
                return Refusal(401, "unauthorized", "this API token is not, or no longer, known here")
            return Identity(token.name, "token", token.writes)
        if scheme.lower() == "basic" and (pair := basic_pair(rest)):
            refusal = await self.check_password(asked, *pair)
            return refusal or Identity(unicodedata.normalize("NFC", pair[0]), "password")
        return UNKNOWN

    async def check_password(self, asked: Asked, user: str, password: str) -> Refusal | None:
        """None if it is right. Counts against the address and the user until it is."""
        if len(user) > LONGEST_NAME or len(password) > LONGEST_PASSWORD:
            return WRONG
        user = unicodedata.normalize("NFC", user)
        mark = self._mark(user, password)
        if mark in self._proven:
            self._proven.move_to_end(mark)
            return None
        address, name = limit_key(asked.client), digest(user)
        if wait := max(self.by_address.wait(address), self.by_user.wait(name)):
            return too_many(wait)
        if self._waiting >= MOST_PASSWORDS_WAITING:
            return CROWDED
        self.by_address.count(address)
        self.by_user.count(name)
        if not await self._slowly(user, password):
            log.warning("a login from %s was refused: wrong user or password", address)
            return WRONG
        self.by_address.forget(address)
        self.by_user.forget(name)
        self._proven[mark] = None
        while len(self._proven) > MOST_PASSWORDS_KNOWN:
            self._proven.popitem(last=False)
        return None

    def _mark(self, user: str, password: str) -> bytes:
        parts = repr((user, password, self.users.password_of(user)))
        return hmac.digest(self._key, parts.encode("utf-8", "backslashreplace"), "sha256")

    async def _slowly(self, user: str, password: str) -> bool:
        """bcrypt in a thread, few at once: strangers must not take all cores, nor the query threads."""
        if self._gate is None:  # needs the running loop
            self._gate = asyncio.Semaphore(PASSWORDS_AT_ONCE)
        self._waiting += 1
        try:
            async with self._gate:
                return await asyncio.to_thread(self.users.check, user, password)
        finally:
            self._waiting -= 1


def too_many(wait: float) -> Refusal:
    return Refusal(429, "too_many_requests", f"too many attempts; try again in {int(wait) + 1} s", wait)


def session_ids(asked: Asked) -> Sequence[str]:
    """What the browser sent as our cookie: another site of the same domain may have added values of its own."""
    wanted = SECURE_COOKIE if asked.secure else COOKIE
    found = []
    for name, value in asked.headers:
        if name == "cookie":
            for part in value[:LONGEST_HEADER].split(";"):
                key, _, content = part.strip().partition("=")
                if key == wanted and content:
                    found.append(content)
    return found[:MOST_COOKIES_TRIED]


def basic_pair(encoded: str) -> tuple[str, str] | None:
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode("utf-8"), password.decode("utf-8")) if colon else None
    except (binascii.Error, ValueError):
        return None
