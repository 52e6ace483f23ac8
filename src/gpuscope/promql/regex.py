"""Regular expressions as Prometheus reads them: RE2's syntax, and always about the whole value."""

from __future__ import annotations

from typing import Any

import re2

_QUIET = re2.Options()
_QUIET.log_errors = False  # a user's slip is answered, not written to our standard error


def compile_whole(pattern: str) -> Any:
    """Compiled for `fullmatch`; a dot matches line ends too. ValueError says what is wrong with the pattern."""
    try:
        return re2.compile(f"(?s:{pattern})", _QUIET)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        raise ValueError(
            reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        ) from error
