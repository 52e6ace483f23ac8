"""The way in for the first user: a token that whoever started the server sees, good for one user.

It lives in this process only and dies when there is a user, however that came about.
"""

from __future__ import annotations

import hmac

from gpuscope.server.login.credentials import digest, new_secret
from gpuscope.server.login.user_file import Users


class Setup:
    def __init__(self, users: Users) -> None:
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
