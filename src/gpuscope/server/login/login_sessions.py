"""Who is logged in: `sessions.json` keeps the digest of each session's id, whose it is and when it ends.

On disk, so that a restarted server does not throw its viewers out. A session is worth something only while its
user exists with the password it was opened with: a new password ends every session by itself. Where the disk is
full they are kept in memory, since that is when somebody wants to look.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpuscope.server.login.credentials import digest, new_secret
from gpuscope.server.login.private_file import Document, PrivateFile
from gpuscope.server.login.user_file import Users

log = logging.getLogger("gpuscope")

FILE_NAME = "sessions.json"
MAX_PER_USER = 50
MAX_IN_ALL = 5000
LONGEST_ID = 64


class Sessions:
    def __init__(
        self, folder: Path, users: Users, lifetime: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = PrivateFile(folder / FILE_NAME, _check)
        self._users = users
        self._clock = clock
        self.lifetime = lifetime
        self._unwritten: Document = {}
        self._file.open()

    def open_for(self, user: str) -> str:
        """A new session's id. It writes a file; call it in a thread."""
        session_id, now = new_secret(), self._clock()
        password = self._users.password_of(user) or ""
        session = {"user": user, "password": digest(password), "expires": now + self.lifetime}

        def with_it(sessions: Document) -> Document:
            alive = {key: one for key, one in sessions.items() if one["expires"] > now}
            return _newest(alive | {digest(session_id): session}, user)

        def change(document: Document) -> None:
            document["sessions"] = with_it(document["sessions"])

        try:
            self._file.update(change)
        except (OSError, ValueError) as error:
            log.warning("%s is not written, a restart will end this session: %s", self._file.path, error)
            self._unwritten = with_it(self._unwritten)
        return session_id

    def user_of(self, session_id: str) -> str | None:
        if len(session_id) > LONGEST_ID:
            return None
        key = digest(session_id)
        found = self._file.read()["sessions"].get(key) or self._unwritten.get(key)
        if found is None or found["expires"] <= self._clock():
            return None
        password = self._users.password_of(found["user"])
        if password is None or digest(password) != found["password"]:
            return None
        user: str = found["user"]
        return user

    def close(self, session_id: str) -> None:
        """Raises OSError or ValueError if it could not be ended."""
        key = digest(session_id)
        self._unwritten.pop(key, None)
        if key in self._file.read()["sessions"]:  # else a stranger's cookie could make us write
            self._file.update(lambda document: document["sessions"].pop(key, None))


def _newest(sessions: Document, user: str) -> Document:
    own = [key for key, one in sessions.items() if one["user"] == user]
    for key in own[:-MAX_PER_USER]:
        del sessions[key]
    return dict(list(sessions.items())[-MAX_IN_ALL:])


def _check(document: Document) -> Document:
    if not isinstance(document, dict) or document.get("version", 1) != 1:
        raise ValueError("it is of another version")
    sessions = document.get("sessions", {})
    if not isinstance(sessions, dict) or not all(_is_whole(one) for one in sessions.values()):
        raise ValueError("a session is not whole")
    return {"version": 1, "sessions": sessions}


def _is_whole(one: object) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("user"), str)
        and isinstance(one.get("password"), str)
        and isinstance(one.get("expires"), int | float)
    )
