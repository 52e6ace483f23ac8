"""Routes that manage users and API tokens, and show the audit log. All of them need an admin (`roles.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import orjson

from gpuscope.serve.api_types.session_json import AuditAnswer, NewTokenAnswer, TokenPermits, UsersAnswer
from gpuscope.serve.http.messages import BodyTooLarge, ClientDisconnected, Request, Response
from gpuscope.serve.http.routing import Route
from gpuscope.serve.login.audit_log import AUDIT_DETAIL, AuditLog
from gpuscope.serve.login.login_responses import refusal_response
from gpuscope.serve.login.password_checks import Refusal
from gpuscope.serve.login.roles import ClientRole
from gpuscope.serve.login.user_file import ApiToken, UserError, UserFile

MAX_BODY_BYTES = 16 << 10
MAX_AUDIT_ENTRIES = 200
_NO_LOGIN = Refusal(404, "not_found", "this server is open and has no login; it has no users and tokens")


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
                {"name": one.name, "permits": _permits(one), "node": one.node, "created_at": one.created_at}
                for one in users.tokens()
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
        found = [] if self._audit is None else await asyncio.to_thread(self._audit.newest, MAX_AUDIT_ENTRIES)
        answer: AuditAnswer = {"entries": found}
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
