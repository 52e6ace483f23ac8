"""The login routes of the page (`api/login`, `api/logout`, `api/session`), and those for users and tokens.

`POST api/login {"user", "password"}` opens a session; with `"token"`, the token printed at the first start, it
creates the first user. The body must be JSON: another site could make a browser send a form. Users, API tokens
and the audit log need an admin (`access_rules.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import orjson

from gpuscope.serve.api_types.session_json import AuditAnswer, NewTokenAnswer, TokenPermits, UsersAnswer
from gpuscope.serve.http.messages import BodyTooLarge, ClientDisconnected, Request, Response, Route
from gpuscope.serve.login.access_rules import ClientRequest, ClientRole
from gpuscope.serve.login.audit_log import AUDIT_DETAIL, AuditLog
from gpuscope.serve.login.authenticator import COOKIE, SECURE_COOKIE, Authenticator, ClientIdentity, session_ids
from gpuscope.serve.login.password_checks import WRONG, Refusal, json_response, refusal_response, too_many
from gpuscope.serve.login.user_file import ApiToken, FirstUserSetup, UserError, UserFile, clean_name

LOGIN_PATH, LOGOUT_PATH, SESSION_PATH = "/api/login", "/api/logout", "/api/session"
MAX_BODY_BYTES = 16 << 10

IDENTITY_KEY, CLIENT_REQUEST_KEY = "gpuscope.identity", "gpuscope.client_request"
"""Keys in the request's state, set by the access policy."""
MAX_AUDIT_ENTRIES = 200
_NO_LOGIN = Refusal(404, "not_found", "this server is open and has no login; it has no users and tokens")


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


class _BadForm(Exception):
    pass


class UserRoutes:
    """`users` is None on a server without a login."""

    def __init__(self, users: UserFile | None, audit: AuditLog | None) -> None:
        self._users = users
        self._audit = audit

    def routes(self) -> list[Route]:
        return [
            Route("/api/users", self._answer(self._list)),
            Route("/api/users", self._answer(self._add), ("POST",)),
            Route("/api/users/{name}", self._answer(self._remove), ("DELETE",)),
            Route("/api/users/{name}/role", self._answer(self._set_role), ("POST",)),
            Route("/api/tokens", self._answer(self._add_token), ("POST",)),
            Route("/api/tokens/{name}", self._answer(self._revoke), ("DELETE",)),
            Route("/api/audit", self._entries),
        ]

    def _answer(self, change: Callable[[UserFile, Request, dict[str, Any]], object]) -> Any:
        async def answer(request: Request) -> Response:
            if self._users is None:
                return refusal_response(_NO_LOGIN)
            try:
                form = await _read_json(request) if request.method == "POST" else {}
                document = await asyncio.to_thread(change, self._users, request, form)
            except (UserError, _BadForm) as error:
                return refusal_response(Refusal(400, "bad_data", str(error)))
            except (OSError, ValueError) as error:
                return refusal_response(Refusal(503, "unavailable", f"the change could not be saved: {error}"))
            return _json(document)

        return answer

    def _list(self, users: UserFile, request: Request, form: dict[str, Any]) -> UsersAnswer:
        return {
            "users": [
                {"name": name, "role": entry.role.value, "created_at": entry.created_at}
                for name, entry in users.names().items()
            ],
            "tokens": [
                {
                    "name": token.name,
                    "permits": _permits(token),
                    "node": token.node,
                    "created_at": token.created_at,
                }
                for token in users.tokens()
            ],
        }

    def _add(self, users: UserFile, request: Request, form: dict[str, Any]) -> object:
        name, role = _text(form, "name"), ClientRole(_choice(form, "role", tuple(ClientRole)))
        request.state[AUDIT_DETAIL] = f"user {name}, role {role}"
        users.add(name, _text(form, "password"), role=role)
        return {"done": True}

    def _set_role(self, users: UserFile, request: Request, form: dict[str, Any]) -> object:
        name, role = request.path.split("/")[3], ClientRole(_choice(form, "role", tuple(ClientRole)))
        request.state[AUDIT_DETAIL] = f"user {name}, role {role}"
        # The command `gpuscope user`, which needs no login, may remove the last admin.
        users.set_role(name, role, keep_admin=True)
        return {"done": True}

    def _remove(self, users: UserFile, request: Request, form: dict[str, Any]) -> object:
        name = request.path.rpartition("/")[2]
        request.state[AUDIT_DETAIL] = f"user {name}"
        users.remove(name, keep_admin=True)
        return {"done": True}

    def _add_token(self, users: UserFile, request: Request, form: dict[str, Any]) -> NewTokenAnswer:
        name, permits = _text(form, "name"), _choice(form, "permits", get_args(TokenPermits))
        node = _text(form, "node") if form.get("node") else ""
        bound = f" for node {node}" if node else ""
        request.state[AUDIT_DETAIL] = f"token {name}, permits {permits}{bound}"
        role = ClientRole.VIEWER if permits == "write" else ClientRole(permits)
        return {"token": users.add_token(name, writes=permits == "write", role=role, node=node)}

    def _revoke(self, users: UserFile, request: Request, form: dict[str, Any]) -> object:
        name = request.path.rpartition("/")[2]
        request.state[AUDIT_DETAIL] = f"token {name}"
        users.revoke_token(name)
        return {"done": True}

    async def _entries(self, request: Request) -> Response:
        entries = [] if self._audit is None else await asyncio.to_thread(self._audit.newest, MAX_AUDIT_ENTRIES)
        answer: AuditAnswer = {"entries": entries}
        return _json(answer)


def _permits(token: ApiToken) -> TokenPermits:
    return "write" if token.writes else token.role.value


def _json(document: object) -> Response:
    return Response(orjson.dumps(document), 200, "application/json", (("cache-control", "no-store"),))


async def _read_json(request: Request) -> dict[str, Any]:
    """The body must be JSON by its content type: another site could make a browser send a form."""
    if request.header("content-type").partition(";")[0].strip().lower() != "application/json":
        raise _BadForm("send the request as JSON, with content-type application/json")
    try:
        document = orjson.loads(await request.body.read(MAX_BODY_BYTES))
    except BodyTooLarge:
        raise _BadForm(f"the request is larger than {MAX_BODY_BYTES} bytes") from None
    except (ClientDisconnected, orjson.JSONDecodeError):
        document = None
    if not isinstance(document, dict):
        raise _BadForm("the body is not a JSON object")
    return document


def _text(form: dict[str, Any], key: str) -> str:
    value = form.get(key)
    if not isinstance(value, str) or not value:
        raise _BadForm(f"{key} is required and must be a string")
    return value


def _choice(form: dict[str, Any], key: str, choices: tuple[Any, ...]) -> Any:
    value = form.get(key)
    if value not in choices:
        raise _BadForm(f"{key} must be one of {', '.join(choices)}")
    return value
