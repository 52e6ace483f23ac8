"""Regular expressions as Prometheus reads them: RE2's syntax, a dot matches line ends, always the whole value.

RE2 takes linear time on any pattern, so a hostile one costs no more than a good one.
"""

from __future__ import annotations

from typing import Any

import re2


def compile_anchored(pattern: str, *, captures: bool = True) -> Any:
    """For `fullmatch`. ValueError with RE2's reason; without `captures`, groups cost nothing."""
    options = re2.Options()
    options.log_errors = False  # a user's mistake is answered, not written to standard error
    options.never_capture = not captures
    try:
        # On its own first: `a)|(?:b` is not valid, but would be inside of the group.
        re2.compile(pattern, options)
        return re2.compile(f"(?s:{pattern})", options)
    except UnicodeEncodeError as error:
        raise ValueError(str(error)) from None
    except re2.error as error:
        reason = error.args[0] if error.args else "not valid"
        raise ValueError(
            reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        ) from None
