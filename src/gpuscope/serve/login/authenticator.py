"""Identifies a client by session cookie, API token, password, or the user header of a trusted reverse proxy.

Returns a `ClientIdentity` or a `Refusal`. The refusal does not reveal whether the user exists.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuscope.serve.login.access_rules import ClientRequest, ClientRole
from gpuscope.serve.login.password_checks import (
    MAX_NAME_LENGTH,
    LoginAttempts,
    PasswordChecker,
    Refusal,
    too_many,
)
from gpuscope.serve.login.user_file import ApiToken, LoginSessions, UserFile

COOKIE = "gpuscope_session"
SECURE_COOKIE = "__Host-gpuscope_session"
"""Under TLS: browsers accept this prefix only with Secure and for this exact host."""

MAX_COOKIES_TRIED = 8
MAX_HEADER_LENGTH = 8192

Via = Literal["session", "token", "password", "proxy"]
UNKNOWN = Refusal(401, "unauthorized", "log in, or send an API token or a user's password")
WRONG_TOKEN = Refusal(401, "unauthorized", "unknown or revoked API token")


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    user: str
    via: Via
    role: ClientRole
    only_remote_write: bool = False
    """An API token that is stored on a sender: a stolen one must neither read nor delete."""
    node: str = ""
    """The only node whose samples it may send; empty: of every node."""

    @property
    def is_ambient(self) -> bool:
        """True if browsers attach the credential to every request, also to those that another site causes."""
        return self.via in ("session", "proxy")


@dataclass(slots=True)
class Authenticator:
    users: UserFile
    sessions: LoginSessions
    attempts: LoginAttempts
    proxy_header: str = ""
    default_role: ClientRole = ClientRole.VIEWER
    """Of users that a reverse proxy names and that are not in `users`."""
    passwords: PasswordChecker = field(init=False)

    def __post_init__(self) -> None:
        self.passwords = PasswordChecker(self.attempts, self.users.check, self.users.password_of)

    async def identify(self, client_request: ClientRequest) -> ClientIdentity | Refusal:
        if identity := self._by_proxy(client_request):
            return identity
        authorization = client_request.header("authorization")
        if authorization is None or len(authorization) > MAX_HEADER_LENGTH:
            return Refusal(400, "bad_data", "more than one Authorization header, or one that is too long")
        if authorization:
            return await self._by_authorization(client_request, authorization)
        return self._by_session(client_request) or UNKNOWN

    def known(self, client_request: ClientRequest) -> ClientIdentity | None:
        """The identity that a session, the proxy or an API token proves; passwords are not checked."""
        if identity := self._by_session(client_request) or self._by_proxy(client_request):
            return identity
        scheme, _, secret = (client_request.header("authorization") or "").partition(" ")
        token = self.users.token(secret.strip()) if scheme.lower() == "bearer" else None
        return None if token is None else _token_identity(token)

    def _by_session(self, client_request: ClientRequest) -> ClientIdentity | None:
        for session_id in session_ids(client_request):
            if user := self.sessions.user_of(session_id):
                return ClientIdentity(user, "session", self._role_of(user))
        return None

    def _by_proxy(self, client_request: ClientRequest) -> ClientIdentity | None:
        if not self.proxy_header or not client_request.through_proxy:
            return None
        name = client_request.header(self.proxy_header)
        if not name:
            return None
        name = name.encode("latin-1", "replace").decode("utf-8", "replace")
        if len(name) > MAX_NAME_LENGTH or not name.isprintable():
            return None
        return ClientIdentity(name, "proxy", self._role_of(name))

    def _role_of(self, user: str) -> ClientRole:
        return self.users.role_of(user) or self.default_role

    async def _by_authorization(self, client_request: ClientRequest, header: str) -> ClientIdentity | Refusal:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() == "bearer":
            return self._by_token(client_request, rest.strip())
        if scheme.lower() == "basic" and (pair := parse_basic(rest)):
            refusal = await self.check_password(client_request, *pair)
            name = unicodedata.normalize("NFC", pair[0])
            return refusal or ClientIdentity(name, "password", self._role_of(name))
        return UNKNOWN

    def _by_token(self, client_request: ClientRequest, secret: str) -> ClientIdentity | Refusal:
        """Accepts a valid token even from a rate-limited address: the lookup is cheap, and 256 random bits
        cannot be guessed."""
        token = self.users.token(secret)
        if token is not None:
            return _token_identity(token)
        if wait := self.attempts.wait_seconds_of(client_request.client):
            return too_many(wait)
        self.attempts.count(client_request.client)
        self.attempts.log_refusal(client_request.client, "unknown API token")
        return WRONG_TOKEN

    async def check_password(self, client_request: ClientRequest, user: str, password: str) -> Refusal | None:
        """Returns None if the password is correct. A failure counts against the address and the user."""
        return await self.passwords.refusal(client_request.client, unicodedata.normalize("NFC", user), password)


def _token_identity(token: ApiToken) -> ClientIdentity:
    return ClientIdentity(token.name, "token", token.role, token.writes, token.node)


def session_ids(client_request: ClientRequest) -> Sequence[str]:
    """All values of the session cookie: another site of the same domain may have set one as well."""
    cookie = SECURE_COOKIE if client_request.secure else COOKIE
    values = []
    for name, value in client_request.headers:
        if name == "cookie":
            for part in value[:MAX_HEADER_LENGTH].split(";"):
                key, _, content = part.strip().partition("=")
                if key == cookie and content:
                    values.append(content)
    return values[:MAX_COOKIES_TRIED]


def parse_basic(encoded: str) -> tuple[str, str] | None:
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode("utf-8"), password.decode("utf-8")) if colon else None
    except (binascii.Error, ValueError):
        return None
