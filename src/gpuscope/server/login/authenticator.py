"""Who is asking: by session cookie, API token, password, or the word of a reverse proxy we believe.

Answers an `Identity`, or a `Refusal` that says the same whether the user exists or not.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuscope.server.login.client_request import ClientRequest
from gpuscope.server.login.login_sessions import Sessions
from gpuscope.server.login.password_checks import (
    MAX_NAME_LENGTH,
    Attempts,
    PasswordChecks,
    Refusal,
    too_many,
)
from gpuscope.server.login.user_file import Users

COOKIE = "gpuscope_session"
SECURE_COOKIE = "__Host-gpuscope_session"
"""Under TLS: a browser takes this name only with Secure, for this very host."""

MAX_COOKIES_TRIED = 8
MAX_HEADER_LENGTH = 8192

Via = Literal["session", "token", "password", "proxy"]
Scope = Literal["all", "read", "write"]
"""What an identity may do: a user everything, a token either read or send samples."""


@dataclass(frozen=True, slots=True)
class Identity:
    user: str
    via: Via
    may: Scope = "all"

    @property
    def is_ambient(self) -> bool:
        """True if a browser attaches it to every request by itself, also to those another site caused."""
        return self.via in ("session", "proxy")


UNKNOWN = Refusal(401, "unauthorized", "log in, or send an API token or a user's password")
WRONG_TOKEN = Refusal(401, "unauthorized", "this API token is not, or no longer, known here")


@dataclass(slots=True)
class Authenticator:
    users: Users
    sessions: Sessions
    attempts: Attempts
    proxy_header: str = ""
    passwords: PasswordChecks = field(init=False)

    def __post_init__(self) -> None:
        self.passwords = PasswordChecks(self.attempts, self.users.check, self.users.password_of)

    async def identify(self, asked: ClientRequest) -> Identity | Refusal:
        if identity := self._by_proxy(asked):
            return identity
        authorization = asked.header("authorization")
        if authorization is None or len(authorization) > MAX_HEADER_LENGTH:
            return Refusal(400, "bad_data", "the Authorization header is not one")
        if authorization:
            return await self._by_authorization(asked, authorization)
        for session_id in session_ids(asked):
            if user := self.sessions.user_of(session_id):
                return Identity(user, "session")
        return UNKNOWN

    def _by_proxy(self, asked: ClientRequest) -> Identity | None:
        if not self.proxy_header or not asked.through_proxy:
            return None
        name = asked.header(self.proxy_header)
        if not name:
            return None
        name = name.encode("latin-1", "replace").decode("utf-8", "replace")
        if len(name) > MAX_NAME_LENGTH or not name.isprintable():
            return None
        return Identity(name, "proxy")

    async def _by_authorization(self, asked: ClientRequest, header: str) -> Identity | Refusal:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() == "bearer":
            return self._by_token(asked, rest.strip())
        if scheme.lower() == "basic" and (pair := basic_pair(rest)):
            refusal = await self.check_password(asked, *pair)
            return refusal or Identity(unicodedata.normalize("NFC", pair[0]), "password")
        return UNKNOWN

    def _by_token(self, asked: ClientRequest, secret: str) -> Identity | Refusal:
        """A known token passes also from an address that must wait: looking it up costs nothing, and 256 random
        bits are not guessed."""
        token = self.users.token(secret)
        if token is not None:
            return Identity(token.name, "token", "write" if token.writes else "read")
        if wait := self.attempts.wait_of(asked.client):
            return too_many(wait)
        self.attempts.count(asked.client)
        self.attempts.tell(asked.client, "unknown API token")
        return WRONG_TOKEN

    async def check_password(self, asked: ClientRequest, user: str, password: str) -> Refusal | None:
        """None if it is right. Counts against the address and the user until it is."""
        return await self.passwords.refusal(asked.client, unicodedata.normalize("NFC", user), password)


def session_ids(asked: ClientRequest) -> Sequence[str]:
    """What the browser sent as our cookie: another site of the same domain may have added values of its own."""
    wanted = SECURE_COOKIE if asked.secure else COOKIE
    found = []
    for name, value in asked.headers:
        if name == "cookie":
            for part in value[:MAX_HEADER_LENGTH].split(";"):
                key, _, content = part.strip().partition("=")
                if key == wanted and content:
                    found.append(content)
    return found[:MAX_COOKIES_TRIED]


def basic_pair(encoded: str) -> tuple[str, str] | None:
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode("utf-8"), password.decode("utf-8")) if colon else None
    except (binascii.Error, ValueError):
        return None
