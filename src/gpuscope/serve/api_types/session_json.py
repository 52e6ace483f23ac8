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


# Answers and requests of the page's settings: users, tokens, audit log, the server, a channel's test.

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


# The answer of `GET /api/reload`: whether the files that a server uses are the current ones.


class ReloadedFilesJson(TypedDict):
    """Files that are read together; one mistake in them leaves the previous ones in use."""

    error: str
    """Why the last reload was refused: file, line and reason; empty if it was not."""
    loaded_at: float
    """When what is in use was read."""


class ReloadAnswer(TypedDict):
    """The last reload, at SIGHUP."""

    rules: ReloadedFilesJson
    """Configuration and rule files."""
    idle_policy: ReloadedFilesJson
    """The file of `--idle-policy`."""
    alerting: ReloadedFilesJson
    """The file of `--alerting`, or `--notify`."""


# The answer of `GET /api/links`: other programs that the page links to.


class LinksAnswer(TypedDict):
    """Addresses as the reader's browser reaches them."""

    grafana: NotRequired[str]
    """Grafana with the dashboards of `gpuscope render grafana`; absent without `--grafana-url`."""


# The answer of `POST /api/demo/load`, which only a demo has.


class LoadedGpuJson(TypedDict):
    """A simulated GPU under load."""

    gpu: str
    """The driver's index."""
    uuid: str
    model: NotRequired[str]
    bytes_per_second: NotRequired[float]
    """Of a load that copies: the simulated bytes, in both directions together."""


class DemoLoadAnswer(TypedDict):
    """A load that has begun."""

    node: str
    gpus: list[LoadedGpuJson]
    ends_at: float
    """Seconds since the epoch."""
