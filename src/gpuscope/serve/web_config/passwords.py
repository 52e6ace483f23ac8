"""Basic auth for the users of a web configuration file, with the login's rate limits and thread pool."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from typing import Any

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import Limits
from gpuscope.serve.http.messages import Request, RequestGuard, Response, text
from gpuscope.serve.login.password_checks import LoginAttempts, PasswordChecker, Refusal

_CHALLENGE = (("www-authenticate", 'Basic realm="gpuscope"'),)
_HASH = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}", re.ASCII)
# Checked for an unknown user, so that response times do not reveal which users exist.
_UNKNOWN_USER_HASH = "$2b$10$XGuZIVrvGF5GIZVL/P2aYO9RhqdFH23dIyILOf//2CHFOCmMdQWye"
MAX_BCRYPT_BYTES = 72
"""bcrypt ignores the bytes after these."""


def password_guard(users: Mapping[Any, Any], limits: Limits) -> RequestGuard:
    import bcrypt

    hashes = {str(user): str(stored) for user, stored in users.items()}
    for user, stored in hashes.items():
        if not _HASH.fullmatch(stored):
            raise UsageError(f"the password of {user[:80]!r} is not a bcrypt hash")

    def check(user: str, password: str) -> bool:
        encoded = password.encode("latin-1")[:MAX_BCRYPT_BYTES]
        try:
            matches = bcrypt.checkpw(encoded, hashes.get(user, _UNKNOWN_USER_HASH).encode("ascii"))
        except ValueError:  # the password contains a NUL
            return False
        return matches and user in hashes

    checker = PasswordChecker(LoginAttempts.from_limits(limits), check, hashes.get)

    async def guard(request: Request, client: str) -> Response | None:
        credentials = _basic_credentials(request.header("authorization"))
        if credentials is None:
            return text("Unauthorized", 401, _CHALLENGE)
        refusal = await checker.refusal(client, *credentials)
        return None if refusal is None else _to_response(refusal)

    return guard


def _to_response(refusal: Refusal) -> Response:
    if refusal.status == 401:
        return text("Unauthorized", 401, _CHALLENGE)
    return text(refusal.sentence, refusal.status, (("retry-after", str(math.ceil(refusal.wait_seconds))),))


def _basic_credentials(header: str) -> tuple[str, str] | None:
    """The user, and the password decoded as Latin-1, which preserves its bytes for bcrypt."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user.decode("utf-8", "replace"), password.decode("latin-1")) if colon else None
