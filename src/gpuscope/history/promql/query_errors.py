"""Query errors, with the error types of Prometheus' HTTP API.

    PromQLError                 error_type
    ├── BadQueryError           bad_data     invalid PromQL, or wrong types
    │   └── UnsupportedError    bad_data     valid in another engine; the message names the feature
    ├── ExecutionError          execution    the data or a limit prevents it (many-to-many, duplicate series)
    ├── QueryTimeoutError       timeout
    └── QueryCanceledError      canceled

`parse` and `Engine` raise no other exceptions for any text, except those of the store.
"""

from __future__ import annotations


class PromQLError(Exception):
    """A query failed; `error_type` is the type in the HTTP API."""

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
