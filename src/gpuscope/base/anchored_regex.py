"""Compiles regular expressions like Prometheus: RE2 syntax, a dot matches line breaks, the whole value matches.

Alertmanager's are the same but for the dot, which does not match line breaks there.

RE2 runs in linear time, so a hostile pattern takes no more time than any other.
"""

from __future__ import annotations

from typing import Any

import re2


def compile_anchored(
    pattern: str,
    *,
    captures: bool = True,
    dot_matches_newline: bool = True,
    max_memory_bytes: int | None = None,
) -> Any:
    """For use with `fullmatch`. Raises ValueError with RE2's reason. Matching is faster without `captures`.

    `max_memory_bytes` bounds what RE2 keeps for the pattern, 8 MiB otherwise: for patterns that stay.
    """
    options = re2.Options()
    if max_memory_bytes is not None:
        options.max_mem = max_memory_bytes
    options.log_errors = False  # RE2 would also write the error to standard error
    options.never_capture = not captures
    try:
        # Without the group first: `a)|(?:b` is not valid, but would be valid inside the group.
        re2.compile(pattern, options)
        return re2.compile(f"(?{'s' if dot_matches_newline else ''}:{pattern})", options)
    except UnicodeEncodeError as error:
        raise ValueError(str(error)) from None
    except re2.error as error:
        reason = error.args[0] if error.args else "not valid"
        raise ValueError(
            reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        ) from None
