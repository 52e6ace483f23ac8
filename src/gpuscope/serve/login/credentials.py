"""Hashes credentials: passwords with bcrypt, random secrets with SHA-256.

Session ids, API tokens and the setup token are 256 random bits, so a fast digest is enough. Passwords can be
guessed, so they need bcrypt. A check takes the same time whether the user exists or not.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import unicodedata

ROUNDS = 12
MIN_PASSWORD_LENGTH = 10
MAX_PASSWORD_LENGTH = 1024
TOKEN_PREFIX = "gpuscope_"  # noqa: S105 - lets secret scanners find a leaked token

_UNKNOWN_USER_TAIL = b"XGuZIVrvGF5GIZVL/P2aYO9RhqdFH23dIyILOf//2CHFOCmMdQWye"


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def new_token() -> str:
    return TOKEN_PREFIX + new_secret()


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def password_error(user: str, password: str) -> str:
    """The reason why this password is not acceptable, or ""."""
    if len(password) < MIN_PASSWORD_LENGTH:
        return f"the password is shorter than {MIN_PASSWORD_LENGTH} characters"
    if len(password) > MAX_PASSWORD_LENGTH:
        return f"the password is longer than {MAX_PASSWORD_LENGTH} characters"
    if password.casefold() == user.casefold() or len(set(password)) < 4:
        return "the password is too easy to guess: it equals the user name or repeats a few characters"
    return ""


def hash_password(password: str, rounds: int = ROUNDS) -> str:
    import bcrypt

    return bcrypt.hashpw(_to_bcrypt_input(password), bcrypt.gensalt(rounds)).decode("ascii")


def check_password(password: str, stored: str | None, rounds: int = ROUNDS) -> bool:
    """False if `stored` is None, after the same time as for a wrong password."""
    import bcrypt

    unknown_user = b"$2b$%02d$" % rounds + _UNKNOWN_USER_TAIL
    try:
        matches = bcrypt.checkpw(_to_bcrypt_input(password), stored.encode("ascii") if stored else unknown_user)
    except ValueError:  # the stored hash is malformed
        return False
    return matches and stored is not None


def _to_bcrypt_input(password: str) -> bytes:
    """A digest of the password: bcrypt reads at most 72 bytes, which is only 24 Korean syllables.

    NFC first, because keyboards differ in whether they send composed or decomposed characters.
    """
    composed = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    return base64.b64encode(hmac.digest(b"gpuscope password 1", composed, "sha256"))
