"""The one-time token that creates the first user. It is printed in the server's log.

The token exists only in this process and becomes invalid as soon as any user exists.
"""

from __future__ import annotations

import hmac

from gpuscope.serve.login.credentials import digest, new_secret
from gpuscope.serve.login.user_file import UserFile


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
