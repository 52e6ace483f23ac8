"""Answers and requests of the page's settings: users, tokens, audit log, the server, a channel's test."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from gpuscope.serve.api_types.session_json import RoleName

TokenPermits = Literal["viewer", "editor", "admin", "write"]


class UserJson(TypedDict):
    """A user who can log in."""

    name: str
    role: RoleName
    created_at: float


class TokenJson(TypedDict):
    """An API token; the token itself is shown once, when it is created."""

    name: str
    permits: TokenPermits
    """A role, or `write`, which only sends samples by remote write."""
    node: str
    """The only node whose samples a `write` token may send; empty: of every node."""
    created_at: float


class UsersAnswer(TypedDict):
    """`GET /api/users`; needs an admin."""

    users: list[UserJson]
    tokens: list[TokenJson]


class NewUserRequest(TypedDict):
    """`POST /api/users`; needs an admin."""

    name: str
    password: str
    role: RoleName


class RoleRequest(TypedDict):
    """`POST /api/users/NAME/role`; needs an admin."""

    role: RoleName


class NewTokenRequest(TypedDict):
    """`POST /api/tokens`; needs an admin."""

    name: str
    permits: TokenPermits
    node: NotRequired[str]
    """Binds a `write` token to the samples of this node."""


class NewTokenAnswer(TypedDict):
    """The token that was created; only its digest is stored."""

    token: str


class DoneAnswer(TypedDict):
    """A change that was made."""

    done: bool


class AuditEntry(TypedDict):
    """One change that a client requested."""

    time: str
    """RFC 3339."""
    user: str
    """Empty on a server without a login."""
    role: str
    via: str
    address: str
    action: str
    """Method and path."""
    status: int
    """The HTTP status: 200 and above were done, 400 and above refused."""
    detail: str


class AuditAnswer(TypedDict):
    """`GET /api/audit`: the newest first; needs an admin."""

    entries: list[AuditEntry]


class ServerAnswer(TypedDict):
    """`GET /api/server`: the server itself, its history and its disk."""

    version: str
    started_at: float
    has_login: bool
    data_folder: NotRequired[str]
    retention_seconds: NotRequired[float]
    retention_bytes: NotRequired[int]
    """Left out if history is limited by time only."""
    disk_bytes: NotRequired[int]
    """Size of the data folder."""
    disk_free_bytes: NotRequired[int]
    """Free space of the disk that it is on."""
    oldest_at: NotRequired[float]
    """The oldest sample that is kept."""
    series: NotRequired[int]
    counted_series: NotRequired[int]
    """What counts towards `max_series`: eight series that have ended count as one."""
    max_series: NotRequired[int]
    engine: NotRequired[str]
    """URL of the engine behind `--store`; the keys of the own store are then left out."""
