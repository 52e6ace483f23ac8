"""`QueryEngine`: what rules, reports, findings and the live view need from a PromQL engine.

Results are the arrays of `promql.result`: a `Vector` for one time, a `Matrix` for a range. Every failure is an
`EngineError`. Times are milliseconds since the epoch. A limit of None is no limit beyond those of `Limits`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from gpuscope.base.errors import GpuscopeError, ServerUnreachable
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.model.series import Labels

if TYPE_CHECKING:
    # At run time this module has no numpy: `gpuscope query` loads it for its errors.
    from gpuscope.history.promql.result import Matrix, Vector

FAILURE_REASONS = ("broken_off", "failed", "not_prometheus", "refused", "timeout", "unreachable")
"""Label values of `gpuscope_engine_failures_total`."""


class EngineError(GpuscopeError):
    """Why an engine gives no result.

    EngineError                       status  error_type
    ├── EngineUnreachable             503     unavailable  no connection, or the connection broke (exit 4)
    │   └── EngineTimeout             503     timeout      no answer in time (exit 4)
    ├── EngineRefused                 502     unavailable  401 or 403: the engine refuses our credentials
    ├── EngineNotPrometheus           502     unavailable  an HTTP server answers, but not with Prometheus' API
    │   └── EngineApiNotFound         404     not_found    404 to a query: the address lacks a path prefix
    ├── EngineFailed                  5xx     unavailable  the engine or the store has an internal error
    ├── EngineEndpointMissing         4xx     not_found    this engine does not have this endpoint
    └── EngineQueryError              422     execution    the engine rejects this query; others may work
        ├── EngineBadQuery            400     bad_data     the text is not valid PromQL, or a parameter is wrong
        ├── EngineQueryTimeout        503     timeout      the engine stopped the query at its time limit
        └── EngineResultTooLarge      422     execution    the result exceeds a limit: the caller's or `Limits`'

    `status` and `error_type` are those of our own API's answer when it passes the error on.
    """

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


LabelledValue = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says about itself."""

    product: str
    """`gpuscope`, `Prometheus`, `VictoriaMetrics`, `Thanos`, `Mimir`; empty if it does not say."""
    version: str = ""
    retention_ms: int | None = None
    """How long samples are kept; None if the engine does not say."""
    rollup_retention_ms: int | None = None
    """How long roll-ups are kept, if they have a retention of their own."""
    filled_until_ms: int | None = None
    """While the past is being filled in: until when the samples are complete."""


class QueryEngine(Protocol):
    @property
    def name(self) -> str:
        """For messages: `store`, or the URL without credentials."""
        ...

    async def instant(
        self,
        expression: str,
        at_ms: int | None = None,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Vector:
        """The value at one time, as a rule evaluates it; None is the engine's own "now".

        A scalar is one series without labels. A string or a range vector is an EngineBadQuery."""
        ...

    async def range(
        self,
        expression: str,
        start_ms: int,
        end_ms: int,
        step_ms: int,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Matrix:
        """The values at start, start + step, … up to end; series sorted by labels."""
        ...

    async def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_series: int | None = None,
    ) -> list[Labels]:
        """Label sets that any of the selectors matches, sorted."""
        ...

    async def label_values(
        self,
        label: str,
        selectors: Sequence[str] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_values: int | None = None,
    ) -> list[str]: ...

    async def describe(self) -> EngineInfo: ...

    async def hides_resets(self) -> bool:
        """Whether `resets()` is always 0, as with Thanos: it adds up the values before each reset."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class SharingEngine(Protocol):
    """An engine that evaluates several expressions at one time for less than one after the other."""

    async def instants(
        self,
        expressions: Sequence[str],
        at_ms: int,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Vector | EngineError]: ...


async def instants(
    engine: QueryEngine,
    expressions: Sequence[str],
    at_ms: int,
    *,
    max_series: int | None = None,
    timeout_seconds: float | None = None,
) -> list[Vector | EngineError]:
    """Of each expression the value at one time, or why there is none."""
    if isinstance(engine, SharingEngine):
        return await engine.instants(expressions, at_ms, max_series=max_series, timeout_seconds=timeout_seconds)
    return [
        await or_why_not(
            engine.instant(expression, at_ms, max_series=max_series, timeout_seconds=timeout_seconds)
        )
        for expression in expressions
    ]


async def or_why_not(query: Awaitable[Vector]) -> Vector | EngineError:
    """One expression that fails, also by a defect of ours, takes no other down."""
    try:
        return await query
    except EngineError as error:
        return error
    except Exception as error:
        return EngineError(f"unexpected {type(error).__name__}: {error}")


async def describe(engine: QueryEngine) -> EngineInfo:
    """An `EngineInfo` without contents if the engine does not say what it is."""
    try:
        return await engine.describe()
    except EngineError:
        return EngineInfo("")


def labelled_values(vector: Vector) -> list[LabelledValue]:
    """For code that reads a few series one by one."""
    return list(zip(map(dict, vector.labels), vector.values.tolist(), strict=True))


def check_size(count: int, max_count: int | None, what: str) -> None:
    if max_count is not None and count > max_count:
        raise EngineResultTooLarge(f"the result has {count} {what}; at most {max_count} are accepted")


def check_matrix_size(series: int, steps: int, max_samples: int) -> None:
    """Before a matrix is allocated: a sparse answer of a few bytes can stand for a large array."""
    if series * steps > max_samples:
        LIMITS_REACHED.count("query_max_samples")
        raise EngineResultTooLarge(
            f"{series} series of {steps} points; at most {max_samples} samples are accepted (query_max_samples)"
        )
