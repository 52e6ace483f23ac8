"""Users, API tokens and login sessions of one data folder, in files with mode 0600, which hold only hashes.

Users are not in the store's SQLite file, because the `user` command changes them while the server holds the
store, and because `server --store` has no store. The server sees each change at once.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuscope.base.errors import GpuscopeError
from gpuscope.serve.login.access_rules import ClientRole
from gpuscope.serve.login.private_file import (
    ROUNDS,
    Document,
    PrivateFile,
    check_password,
    digest,
    hash_password,
    new_secret,
    new_token,
    password_error,
)

log = logging.getLogger("gpuscope")

FILE_NAME = "users.json"
MAX_NAMES = 1000

# No colon, because of basic auth. No spaces or control characters: names are written to logs and headers.
_NAME = re.compile(r"[\w@+][\w.@+-]{0,63}")
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")


class UserError(GpuscopeError):
    """An invalid change of users or tokens; the message says why."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ApiToken:
    name: str
    writes: bool
    """For remote write, and for nothing else."""
    role: ClientRole
    created_at: float
    node: str = ""
    """The only node whose samples a write token may send; empty: of every node."""


@dataclass(frozen=True, slots=True)
class UserEntry:
    role: ClientRole
    created_at: float


def clean_name(name: str) -> str:
    composed = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(composed):
        raise UserError(f"{name[:80]!r} is not a valid name: use up to 64 letters, digits and . _ - @ +")
    return composed


class UserFile:
    def __init__(self, folder: Path, rounds: int = ROUNDS, clock: Callable[[], float] = time.time) -> None:
        self._file = PrivateFile(folder / FILE_NAME, _check)
        self._rounds = rounds
        self._clock = clock
        self._file.open()

    @property
    def path(self) -> Path:
        return self._file.path

    def names(self) -> dict[str, UserEntry]:
        return {
            name: UserEntry(_role(entry, ClientRole.ADMIN), entry["created"])
            for name, entry in self._file.read()["users"].items()
        }

    def role_of(self, name: str) -> ClientRole | None:
        """None if there is no such user."""
        entry = self._file.read()["users"].get(name)
        return _role(entry, ClientRole.ADMIN) if entry else None

    def tokens(self) -> list[ApiToken]:
        return [_token(name, entry) for name, entry in self._file.read()["tokens"].items()]

    def password_of(self, name: str) -> str | None:
        """The stored hash. Sessions record its digest, so that a new password ends them."""
        entry = self._file.read()["users"].get(name)
        return entry["password"] if entry else None

    def check(self, name: str, password: str) -> bool:
        """Slow (bcrypt): call it in a thread."""
        return check_password(password, self.password_of(unicodedata.normalize("NFC", name)), self._rounds)

    def token(self, secret: str) -> ApiToken | None:
        wanted_digest = digest(secret)
        for name, entry in self._file.read()["tokens"].items():
            if entry["sha256"] == wanted_digest:
                return _token(name, entry)
        return None

    def add(
        self, name: str, password: str, *, role: ClientRole = ClientRole.ADMIN, first: bool = False
    ) -> None:
        """With `first`, fails if any user exists."""
        name, hashed = clean_name(name), self._hash(name, password)

        def change(document: Document) -> None:
            users = document["users"]
            if first and users:
                raise UserError("a user exists already; log in instead")
            if name in users:
                raise UserError(f"user {name!r} exists; `gpuscope user passwd {name}` sets a new password")
            _check_room(users)
            users[name] = {"password": hashed, "role": role.value, "created": self._clock()}

        self._file.update(change)

    def set_password(self, name: str, password: str) -> None:
        name = clean_name(name)
        self._entry(name)
        hashed = self._hash(name, password)

        def change(document: Document) -> None:
            _existing(document["users"], name, "user")["password"] = hashed

        self._file.update(change)

    def set_role(self, name: str, role: ClientRole, *, keep_admin: bool = False) -> None:
        """With `keep_admin`, fails if no admin would be left."""

        def change(document: Document) -> None:
            _existing(document["users"], name, "user")["role"] = role.value
            if keep_admin:
                _check_admin_left(document["users"])

        self._file.update(change)

    def remove(self, name: str, *, keep_admin: bool = False) -> None:
        """With `keep_admin`, fails if no admin would be left."""

        def change(document: Document) -> None:
            _existing(document["users"], name, "user")
            del document["users"][name]
            if keep_admin:
                _check_admin_left(document["users"])

        self._file.update(change)

    def add_token(
        self, name: str, *, writes: bool = False, role: ClientRole = ClientRole.VIEWER, node: str = ""
    ) -> str:
        """Returns the token. Only its digest is stored. `node` binds a write token to one node."""
        name, secret = clean_name(name), new_token()
        if node and not writes:
            raise UserError("only a token for remote write can be bound to a node")
        if node and not _NODE.fullmatch(node):
            raise UserError(f"{node[:80]!r} is not a node name: use letters, digits and . _ -, without a port")

        def change(document: Document) -> None:
            tokens = document["tokens"]
            if name in tokens:
                raise UserError(f"token {name!r} exists; `gpuscope user revoke {name}` revokes it")
            _check_room(tokens)
            tokens[name] = {
                "sha256": digest(secret),
                "writes": writes,
                "role": role.value,
                "created": self._clock(),
                **({"node": node} if node else {}),
            }

        self._file.update(change)
        return secret

    def revoke_token(self, name: str) -> None:
        def change(document: Document) -> None:
            _existing(document["tokens"], name, "token")
            del document["tokens"][name]

        self._file.update(change)

    def _entry(self, name: str) -> Document:
        return _existing(self._file.read()["users"], name, "user")

    def _hash(self, name: str, password: str) -> str:
        if error := password_error(name, password):
            raise UserError(error)
        return hash_password(password, self._rounds)


def _existing(table: Document, name: str, kind: str) -> Document:
    if name not in table:
        raise UserError(f"there is no {kind} {name[:80]!r}; `gpuscope user list` lists users and tokens")
    entry: Document = table[name]
    return entry


def _check_admin_left(users: Document) -> None:
    """Called under the file's lock: two admins could otherwise remove each other at the same time."""
    if all(_role(entry, ClientRole.ADMIN) is not ClientRole.ADMIN for entry in users.values()):
        raise UserError("this is the last admin; make another user an admin first")


def _check_room(table: Document) -> None:
    if len(table) >= MAX_NAMES:
        raise UserError(f"the limit of {MAX_NAMES} entries is reached; remove some first")


def _token(name: str, entry: Document) -> ApiToken:
    role, node = _role(entry, ClientRole.VIEWER), entry.get("node", "")
    return ApiToken(name, entry["writes"], role, entry["created"], node)


def _role(entry: Document, default: ClientRole) -> ClientRole:
    """`default` for an entry that was written before there were roles."""
    return ClientRole(entry.get("role", default))


def _check(document: Document) -> Document:
    if not isinstance(document, dict) or document.get("version", 1) != 1:
        raise ValueError("unknown file version")
    return {
        "version": 1,
        "users": _table(document.get("users", {}), {"password": str, "created": (int, float)}),
        "tokens": _table(document.get("tokens", {}), {"sha256": str, "writes": bool, "created": (int, float)}),
    }


def _table(table: object, shape: dict[str, type | tuple[type, ...]]) -> Document:
    if not isinstance(table, dict):
        raise ValueError("a table is missing")
    for name, entry in table.items():
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(key), kind) for key, kind in shape.items()
        ):
            raise ValueError(f"the entry {name[:80]!r} is incomplete")
        if entry.get("role", ClientRole.VIEWER) not in list(ClientRole):
            raise ValueError(f"the entry {name[:80]!r} has an unknown role")
        if not isinstance(entry.get("node", ""), str):
            raise ValueError(f"the entry {name[:80]!r} has an invalid node")
    return table


class FirstUserSetup:
    def __init__(self, users: UserFile) -> None:
        self._users = users
        self._digest = ""

    def new_token(self) -> str:
        token = new_secret()
        self._digest = digest(token)
        return token

    def is_open(self) -> bool:
        return bool(self._digest) and not self._users.names()

    def accepts(self, token: str) -> bool:
        return self.is_open() and hmac.compare_digest(self._digest, digest(token))

    def close(self) -> None:
        self._digest = ""


# Login sessions: `sessions.json` holds the digest of each session id, its user and its expiry time.
#
# Sessions survive a restart of the server. A session is valid only while its user exists with the password
# that opened it, so a new password ends the user's sessions. If the file cannot be written, because the disk
# is full for example, new sessions are kept in memory: users need the page most at that time.


SESSIONS_FILE_NAME = "sessions.json"
MAX_SESSIONS_PER_USER = 50
MAX_SESSIONS = 5000
MAX_ID_LENGTH = 64


class LoginSessions:
    def __init__(
        self, folder: Path, users: UserFile, lifetime: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = PrivateFile(folder / SESSIONS_FILE_NAME, _check_sessions)
        self._users = users
        self._clock = clock
        self.lifetime = lifetime
        self._unwritten: Document = {}
        self._file.open()

    def open_for(self, user: str) -> str:
        """Opens a session and returns its id. Writes a file: call it in a thread."""
        session_id, now = new_secret(), self._clock()
        password = self._users.password_of(user) or ""
        session = {"user": user, "password": digest(password), "expires": now + self.lifetime}

        def with_session(sessions: Document) -> Document:
            alive = {key: known for key, known in sessions.items() if known["expires"] > now}
            return _newest(alive | {digest(session_id): session}, user)

        def change(document: Document) -> None:
            document["sessions"] = with_session(document["sessions"])

        try:
            self._file.update(change)
        except (OSError, ValueError) as error:
            log.warning("%s: cannot write, a restart will end this session: %s", self._file.path, error)
            self._unwritten = with_session(self._unwritten)
        return session_id

    def user_of(self, session_id: str) -> str | None:
        if len(session_id) > MAX_ID_LENGTH:
            return None
        key = digest(session_id)
        session = self._file.read()["sessions"].get(key) or self._unwritten.get(key)
        if session is None or session["expires"] <= self._clock():
            return None
        password = self._users.password_of(session["user"])
        if password is None or digest(password) != session["password"]:
            return None
        user: str = session["user"]
        return user

    def close(self, session_id: str) -> None:
        """Ends a session. Raises OSError or ValueError if the file cannot be written."""
        key = digest(session_id)
        self._unwritten.pop(key, None)
        if key in self._file.read()["sessions"]:  # an unknown cookie must not cause a write
            self._file.update(lambda document: document["sessions"].pop(key, None))


def _newest(sessions: Document, user: str) -> Document:
    own = [key for key, session in sessions.items() if session["user"] == user]
    for key in own[:-MAX_SESSIONS_PER_USER]:
        del sessions[key]
    return dict(list(sessions.items())[-MAX_SESSIONS:])


def _check_sessions(document: Document) -> Document:
    if not isinstance(document, dict) or document.get("version", 1) != 1:
        raise ValueError("unknown file version")
    sessions = document.get("sessions", {})
    if not isinstance(sessions, dict) or not all(_is_valid(session) for session in sessions.values()):
        raise ValueError("an incomplete session")
    return {"version": 1, "sessions": sessions}


def _is_valid(session: object) -> bool:
    return (
        isinstance(session, dict)
        and isinstance(session.get("user"), str)
        and isinstance(session.get("password"), str)
        and isinstance(session.get("expires"), int | float)
    )
