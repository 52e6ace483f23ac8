"""Why a query has no answer, in the terms of Prometheus' HTTP API.

    PromQLError                 error_type
    ├── BadQueryError           bad_data     the text is not PromQL, or its types do not fit
    │   └── UnsupportedError    bad_data     valid in some engine, not here; the message names the thing
    ├── ExecutionError          execution    the data do not allow it (many-to-many, duplicate series, limits)
    ├── QueryTimeoutError       timeout
    └── QueryCanceledError      canceled

Nothing else leaves `parse` or `Engine` for any input text; a store's own errors pass through.
"""

from __future__ import annotations


class PromQLError(Exception):
    """A query that has no answer; `error_type` is what the HTTP API calls it."""

    error_type = "internal"


class BadQueryError(PromQLError):
    error_type = "bad_data"


class UnsupportedError(BadQueryError):
    pass


class ExecutionError(PromQLError):
    error_type = "execution"


class QueryTimeoutError(PromQLError):
    error_type = "timeout"


class QueryCanceledError(PromQLError):
    error_type = "canceled"
