"""What proves who somebody is, and how it is kept: passwords by bcrypt, random secrets by their SHA-256.

Session ids, API tokens and the setup token are 256 random bits, so a fast digest of them is enough; passwords
are not, so they cost bcrypt's time, for a user that does not exist as for one that does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import unicodedata

ROUNDS = 12
SHORTEST_PASSWORD = 10
LONGEST_PASSWORD = 1024
TOKEN_PREFIX = "gpuscope_"  # noqa: S105 - lets secret scanners find one that leaked

_NOBODY_TAIL = b"XGuZIVrvGF5GIZVL/P2aYO9RhqdFH23dIyILOf//2CHFOCmMdQWye"


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def new_token() -> str:
    return TOKEN_PREFIX + new_secret()


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def password_fault(user: str, password: str) -> str:
    """Why this cannot be a password, or nothing."""
    if len(password) < SHORTEST_PASSWORD:
        return f"the password is shorter than {SHORTEST_PASSWORD} characters"
    if len(password) > LONGEST_PASSWORD:
        return f"the password is longer than {LONGEST_PASSWORD} characters"
    if password.casefold() == user.casefold() or len(set(password)) < 4:
        return "the password is too easy to guess: it is the user's name, or a few characters repeated"
    return ""


def hash_password(password: str, rounds: int = ROUNDS) -> str:
    import bcrypt

    return bcrypt.hashpw(_fit(password), bcrypt.gensalt(rounds)).decode("ascii")


def check_password(password: str, stored: str | None, rounds: int = ROUNDS) -> bool:
    """False for a user without an entry, after the same time as for a wrong password."""
    import bcrypt

    nobody = b"$2b$%02d$" % rounds + _NOBODY_TAIL
    try:
        matches = bcrypt.checkpw(_fit(password), stored.encode("ascii") if stored else nobody)
    except ValueError:  # somebody edited the file
        return False
    return matches and stored is not None


def _fit(password: str) -> bytes:
    """bcrypt takes 72 bytes, which is 24 Korean syllables: any length goes in by its digest.

    One password typed on two keyboards can differ in composition only, so it is composed first.
    """
    composed = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    return base64.b64encode(hmac.digest(b"gpuscope password 1", composed, "sha256"))
