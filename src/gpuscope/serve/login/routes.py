"""The page's login routes: `api/login`, `api/logout` and `api/session`.

`POST api/login {"user", "password"}` opens a session; with `"token"`, the token printed at the first start, it
creates the first user. The body must be JSON: another site could make a browser send a form.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import orjson

from gpuscope.serve.http.messages import BodyTooLarge, ClientDisconnected, Request, Response
from gpuscope.serve.http.routing import Route
from gpuscope.serve.login.audit_log import AUDIT_DETAIL
from gpuscope.serve.login.authenticator import COOKIE, SECURE_COOKIE, Authenticator, ClientIdentity, session_ids
from gpuscope.serve.login.client_request import ClientRequest
from gpuscope.serve.login.first_user_setup import FirstUserSetup
from gpuscope.serve.login.login_responses import json_response, refusal_response
from gpuscope.serve.login.password_checks import WRONG, Refusal, too_many
from gpuscope.serve.login.roles import ClientRole
from gpuscope.serve.login.user_file import UserError, clean_name

LOGIN_PATH, LOGOUT_PATH, SESSION_PATH = "/api/login", "/api/logout", "/api/session"
MAX_BODY_BYTES = 16 << 10

IDENTITY_KEY, CLIENT_REQUEST_KEY = "gpuscope.identity", "gpuscope.client_request"
"""Keys in the request's state, set by the access policy."""


@dataclass(frozen=True, slots=True)
class Form:
    user: str
    password: str
    token: str


class LoginRoutes:
    """`authenticator` is None on an open server, which has no login."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        setup: FirstUserSetup | None = None,
        open_role: ClientRole = ClientRole.ADMIN,
    ) -> None:
        self._authenticator = authenticator
        self._setup = setup
        self._open_role = open_role

    def routes(self) -> list[Route]:
        return [
            Route(LOGIN_PATH, self._login, ("POST",)),
            Route(LOGOUT_PATH, self._logout, ("POST",)),
            Route(SESSION_PATH, self._session),
        ]

    async def _session(self, request: Request) -> Response:
        identity: ClientIdentity | None = request.state.get(IDENTITY_KEY)
        if identity is None:
            return json_response({"open": True, "role": self._open_role.value})
        return json_response({"user": identity.user, "via": identity.via, "role": identity.role.value})

    async def _login(self, request: Request) -> Response:
        if self._authenticator is None:
            return refusal_response(Refusal(404, "not_found", "this server is open and has no login"))
        client_request: ClientRequest = request.state[CLIENT_REQUEST_KEY]
        form = await _read_form(request)
        if isinstance(form, Refusal):
            return refusal_response(form)
        request.state[AUDIT_DETAIL] = f"user {form.user[:64]}"
        prove = self._set_up if form.token else self._check
        refusal = await prove(self._authenticator, client_request, form)
        if refusal is not None:
            return refusal_response(refusal, setup=self._setup is not None and self._setup.is_open())
        return await self._open_session(self._authenticator, client_request, clean_name(form.user))

    async def _open_session(
        self, authenticator: Authenticator, client_request: ClientRequest, user: str
    ) -> Response:
        for old in session_ids(client_request):  # against session fixation: the new session gets a new id
            with contextlib.suppress(OSError, ValueError):
                await asyncio.to_thread(authenticator.sessions.close, old)
        session_id = await asyncio.to_thread(authenticator.sessions.open_for, user)
        cookie = _cookie(client_request, session_id, int(authenticator.sessions.lifetime))
        return json_response({"user": user}, headers=(("set-cookie", cookie),))

    async def _check(
        self, authenticator: Authenticator, client_request: ClientRequest, form: Form
    ) -> Refusal | None:
        return await authenticator.check_password(client_request, form.user, form.password)

    async def _set_up(
        self, authenticator: Authenticator, client_request: ClientRequest, form: Form
    ) -> Refusal | None:
        """Counts failures against the address only, because no user exists yet."""
        if wait := authenticator.attempts.wait_seconds_of(client_request.client):
            return too_many(wait)
        authenticator.attempts.count(client_request.client)
        if self._setup is None or not self._setup.accepts(form.token):
            authenticator.attempts.log_refusal(client_request.client, "wrong setup token")
            return Refusal(WRONG.status, WRONG.kind, "wrong or used setup token")
        authenticator.attempts.forget(client_request.client)
        try:
            await asyncio.to_thread(authenticator.users.add, form.user, form.password, first=True)
        except UserError as error:  # the token stays valid for another name or password
            return Refusal(400, "bad_data", str(error))
        except (OSError, ValueError) as error:
            return Refusal(503, "unavailable", f"the user could not be saved: {error}")
        self._setup.close()
        return None

    async def _logout(self, request: Request) -> Response:
        if self._authenticator is None:
            return json_response({"open": True})
        client_request: ClientRequest = request.state[CLIENT_REQUEST_KEY]
        try:
            for session_id in session_ids(client_request):
                await asyncio.to_thread(self._authenticator.sessions.close, session_id)
        except (OSError, ValueError) as error:
            return refusal_response(Refusal(503, "unavailable", f"the session could not be ended: {error}"))
        return json_response({}, headers=(("set-cookie", _cookie(client_request, "", 0)),))


def _cookie(client_request: ClientRequest, value: str, seconds: int) -> str:
    name, more = (SECURE_COOKIE, "; Secure") if client_request.secure else (COOKIE, "")
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{more}"


async def _read_form(request: Request) -> Form | Refusal:
    kind = request.header("content-type").partition(";")[0].strip().lower()
    if kind != "application/json":
        return Refusal(415, "bad_data", 'send JSON: {"user": …, "password": …}')
    try:
        document = orjson.loads(await request.body.read(MAX_BODY_BYTES))
    except BodyTooLarge:
        return Refusal(413, "bad_data", f"the request is larger than {MAX_BODY_BYTES} bytes")
    except (ClientDisconnected, orjson.JSONDecodeError):
        document = None
    if not isinstance(document, dict):
        return Refusal(400, "bad_data", 'the body is not JSON such as {"user": …, "password": …}')
    fields = [document.get(name, "") for name in ("user", "password", "token")]
    if not all(isinstance(value, str) for value in fields) or not fields[0] or not fields[1]:
        return Refusal(400, "bad_data", "user and password are required and must be strings")
    return Form(*fields)
