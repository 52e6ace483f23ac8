"""Login sessions: `sessions.json` holds the digest of each session id, its user and its expiry time.

Sessions survive a restart of the server. A session is valid only while its user exists with the password that
opened it, so a new password ends the user's sessions. If the file cannot be written, because the disk is full
for example, new sessions are kept in memory: users need the page most at that time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpuscope.serve.login.credentials import digest, new_secret
from gpuscope.serve.login.private_file import Document, PrivateFile
from gpuscope.serve.login.user_file import UserFile

log = logging.getLogger("gpuscope")

FILE_NAME = "sessions.json"
MAX_SESSIONS_PER_USER = 50
MAX_SESSIONS = 5000
MAX_ID_LENGTH = 64


class LoginSessions:
    def __init__(
        self, folder: Path, users: UserFile, lifetime: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = PrivateFile(folder / FILE_NAME, _check)
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


def _check(document: Document) -> Document:
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
