"""Requests and answers of `/api/session`, `/api/login` and `/api/logout`, and every error of `/api/*`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

RoleName = Literal["viewer", "editor", "admin"]


class SessionAnswer(TypedDict):
    """`GET /api/session`: who is logged in."""

    open: NotRequired[bool]
    """True on a server without a login; `user` and `via` are then left out."""
    user: NotRequired[str]
    via: NotRequired[str]
    """How the client proved it: `session`, `password`, `token` or `proxy`."""
    role: RoleName
    """A viewer reads; an editor also silences alerts and sends test messages; an admin may do everything."""


class LoginRequest(TypedDict):
    """`POST /api/login`: the body of the request."""

    user: str
    password: str
    token: NotRequired[str]
    """The setup token that the server printed at its first start; creates the first user."""


class LoginAnswer(TypedDict):
    """`POST /api/login`: the answer. A cookie carries the session."""

    user: str


class LogoutAnswer(TypedDict):
    """`POST /api/logout`: the answer."""

    open: NotRequired[bool]
    """True on a server without a login."""


class ErrorAnswer(TypedDict):
    """Every refusal and failure, in the shape of Prometheus' errors."""

    status: Literal["error"]
    errorType: str
    error: str
    """One sentence for a person."""
    login: NotRequired[bool]
    """True with status 401: the client must log in."""
    setup: NotRequired[bool]
    """With status 401: true while no user exists yet."""
