"""What the page calls to log in and out: `api/login`, `api/logout` and `api/session`.

`POST api/login {"user", "password"}` opens a session; with `"token"`, the one printed at the first start, it
makes the first user. The body is JSON and small; a form is refused, as another site could send one.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import orjson

from gpuscope.server.http.messages import BodyTooLarge, ClientDisconnected, Request, Response
from gpuscope.server.http.routing import Route
from gpuscope.server.login.authenticator import COOKIE, SECURE_COOKIE, Authenticator, Identity, session_ids
from gpuscope.server.login.client_request import ClientRequest
from gpuscope.server.login.login_responses import refuse, to_json
from gpuscope.server.login.password_checks import WRONG, Refusal, too_many
from gpuscope.server.login.setup import Setup
from gpuscope.server.login.user_file import UserError, clean_name

LOGIN_PATH, LOGOUT_PATH, SESSION_PATH = "/api/login", "/api/logout", "/api/session"
MAX_BODY_BYTES = 16 << 10

IDENTITY_KEY, ASKED_KEY = "gpuscope.identity", "gpuscope.asked"
"""Key in the request's state under which the access policy leaves what it found."""


@dataclass(frozen=True, slots=True)
class Form:
    user: str
    password: str
    token: str


class LoginRoutes:
    """`keeper` is absent on an open server, which then has nothing to log in to."""

    def __init__(self, keeper: Authenticator | None = None, setup: Setup | None = None) -> None:
        self._keeper = keeper
        self._setup = setup

    def routes(self) -> list[Route]:
        return [
            Route(LOGIN_PATH, self._login, ("POST",)),
            Route(LOGOUT_PATH, self._logout, ("POST",)),
            Route(SESSION_PATH, self._session),
        ]

    async def _session(self, request: Request) -> Response:
        identity: Identity | None = request.state.get(IDENTITY_KEY)
        if identity is None:
            return to_json({"open": True})
        return to_json({"user": identity.user, "via": identity.via})

    async def _login(self, request: Request) -> Response:
        if self._keeper is None:
            return refuse(Refusal(404, "not_found", "there is nothing to log in to: this server is open"))
        asked: ClientRequest = request.state[ASKED_KEY]
        form = await _read_form(request)
        if isinstance(form, Refusal):
            return refuse(form)
        prove = self._set_up if form.token else self._check
        refusal = await prove(self._keeper, asked, form)
        if refusal is not None:
            return refuse(refusal, setup=self._setup is not None and self._setup.is_open())
        return await self._open_session(self._keeper, asked, clean_name(form.user))

    async def _open_session(self, keeper: Authenticator, asked: ClientRequest, user: str) -> Response:
        for old in session_ids(asked):  # whatever was in the browser before is not carried over
            with contextlib.suppress(OSError, ValueError):
                await asyncio.to_thread(keeper.sessions.close, old)
        session_id = await asyncio.to_thread(keeper.sessions.open_for, user)
        cookie = _cookie(asked, session_id, int(keeper.sessions.lifetime))
        return to_json({"user": user}, headers=(("set-cookie", cookie),))

    async def _check(self, keeper: Authenticator, asked: ClientRequest, form: Form) -> Refusal | None:
        return await keeper.check_password(asked, form.user, form.password)

    async def _set_up(self, keeper: Authenticator, asked: ClientRequest, form: Form) -> Refusal | None:
        """Counts against the address only: no user exists whom somebody could be shut out as."""
        if wait := keeper.attempts.wait_of(asked.client):
            return too_many(wait)
        keeper.attempts.count(asked.client)
        if self._setup is None or not self._setup.accepts(form.token):
            keeper.attempts.tell(asked.client, "wrong setup token")
            return Refusal(WRONG.status, WRONG.kind, "this setup token is wrong or was used already")
        keeper.attempts.forget(asked.client)
        try:
            await asyncio.to_thread(keeper.users.add, form.user, form.password, first=True)
        except UserError as error:  # the token stays good: the next password may be long enough
            return Refusal(400, "bad_data", str(error))
        except (OSError, ValueError) as error:
            return Refusal(503, "unavailable", f"the user could not be kept: {error}")
        self._setup.close()
        return None

    async def _logout(self, request: Request) -> Response:
        if self._keeper is None:
            return to_json({"open": True})
        asked: ClientRequest = request.state[ASKED_KEY]
        try:
            for session_id in session_ids(asked):
                await asyncio.to_thread(self._keeper.sessions.close, session_id)
        except (OSError, ValueError) as error:
            return refuse(Refusal(503, "unavailable", f"the session could not be ended: {error}"))
        return to_json({}, headers=(("set-cookie", _cookie(asked, "", 0)),))


def _cookie(asked: ClientRequest, value: str, seconds: int) -> str:
    name, more = (SECURE_COOKIE, "; Secure") if asked.secure else (COOKIE, "")
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
        return Refusal(400, "bad_data", "user and password are needed, as texts")
    return Form(*fields)
