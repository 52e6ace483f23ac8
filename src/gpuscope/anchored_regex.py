"""Compiles regular expressions like Prometheus: RE2 syntax, a dot matches line breaks, the whole value matches.

RE2 runs in linear time, so a hostile pattern takes no more time than any other.
"""

from __future__ import annotations

from typing import Any

import re2


def compile_anchored(pattern: str, *, captures: bool = True) -> Any:
    """For use with `fullmatch`. Raises ValueError with RE2's reason. Matching is faster without `captures`."""
    options = re2.Options()
    options.log_errors = False  # RE2 would also write the error to standard error
    options.never_capture = not captures
    try:
        # Without the group first: `a)|(?:b` is not valid, but would be valid inside the group.
        re2.compile(pattern, options)
        return re2.compile(f"(?s:{pattern})", options)
    except UnicodeEncodeError as error:
        raise ValueError(str(error)) from None
    except re2.error as error:
        reason = error.args[0] if error.args else "not valid"
        raise ValueError(
            reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        ) from None
