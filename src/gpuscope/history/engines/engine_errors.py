"""Why an engine gives no result.

EngineError                       status  error_type
├── EngineUnreachable             503     unavailable  no connection, or the connection broke (exit 4)
│   └── EngineTimeout             503     timeout      no answer in time (exit 4)
├── EngineRefused                 502     unavailable  401 or 403: the engine does not accept our credentials
├── EngineNotPrometheus           502     unavailable  an HTTP server answers, but not with Prometheus' API
│   └── EngineApiNotFound         404     not_found    404 to a query: the address lacks a path prefix
├── EngineFailed                  5xx     unavailable  the engine or the store has an internal error
├── EngineEndpointMissing         4xx     not_found    this engine does not have this endpoint
└── EngineQueryError              422     execution    the engine rejects this query; others may work
    ├── EngineBadQuery            400     bad_data     the text is not valid PromQL, or a parameter is wrong
    ├── EngineQueryTimeout        503     timeout      the engine stopped the query at its time limit
    └── EngineResultTooLarge      422     execution    the result exceeds a limit of the caller or of `Limits`

`status` and `error_type` are those of our own API's answer when it passes the error on.
"""

from __future__ import annotations

from typing import ClassVar

from gpuscope.base.errors import GpuscopeError, ServerUnreachable

FAILURE_REASONS = ("broken_off", "failed", "not_prometheus", "refused", "timeout", "unreachable")
"""Label values of `gpuscope_engine_failures_total`."""


class EngineError(GpuscopeError):
    error_type: ClassVar[str] = "unavailable"
    failure_reason: ClassVar[str] = ""
    """One of FAILURE_REASONS if the engine itself failed; empty if only this request did."""
    default_status: ClassVar[int] = 502

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = self.default_status if status is None else status


class EngineUnreachable(EngineError):
    exit_code = ServerUnreachable.exit_code
    failure_reason = "unreachable"
    default_status = 503


class EngineTimeout(EngineUnreachable):
    error_type = "timeout"
    failure_reason = "timeout"


class EngineRefused(EngineError):
    failure_reason = "refused"


class EngineNotPrometheus(EngineError):
    failure_reason = "not_prometheus"


class EngineApiNotFound(EngineNotPrometheus):
    error_type = "not_found"
    default_status = 404


class EngineFailed(EngineError):
    failure_reason = "failed"
    default_status = 500


class EngineEndpointMissing(EngineError):
    error_type = "not_found"
    default_status = 404


class EngineQueryError(EngineError):
    error_type = "execution"
    default_status = 422


class EngineBadQuery(EngineQueryError):
    error_type = "bad_data"
    default_status = 400


class EngineQueryTimeout(EngineQueryError):
    error_type = "timeout"
    default_status = 503


class EngineResultTooLarge(EngineQueryError):
    pass
