"""`QueryEngine` over a Prometheus-compatible HTTP API.

`nocache=1` is for VictoriaMetrics: without it, it moves the times of a range query to multiples of the step and
answers an instant query of the last 30 seconds with older samples. Other engines ignore it. Results are read
while they arrive: neither their text nor their decoded JSON is in memory as a whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote

from gpuscope.base.limits import Limits
from gpuscope.base.time_text import parse_prometheus_duration, parse_rfc3339
from gpuscope.history.engines.answer_text import MemoryShare
from gpuscope.history.engines.http_connection import (
    MAX_QUOTED_CHARACTERS,
    EngineConnection,
    EngineResponse,
    Form,
)
from gpuscope.history.engines.query_engine import EngineEndpointMissing, EngineError, EngineInfo, check_size
from gpuscope.history.engines.vector_text import (
    MatrixRows,
    VectorRows,
    VectorText,
    labels_bytes,
    read_labels,
    text_bytes,
)
from gpuscope.history.promql.frame import Steps
from gpuscope.history.promql.result import Matrix, Vector
from gpuscope.model.series import Labels

T = TypeVar("T")
ScrapeErrors = dict[tuple[str, str], tuple[str, str]]
"""By job and instance: the scraped URL and the last error."""

_TEXT_BYTES: Final = 100
_TARGET_BYTES: Final = 3000
"""Two names, a URL and an error."""
_EXACT_TIMES: Final = {"nocache": "1"}
_MALFORMED: Final = (KeyError, IndexError, TypeError, AttributeError, ValueError)


class HttpEngine:
    """Belongs to one event loop, as its connection does.

    With `vector_text`, instant queries are read with it: for a caller that repeats a few queries with very many
    series. With `holds_memory`, the memory of a result is counted until the next one is read or the engine is
    closed, else until the result is returned: for a caller that is gone when it has what it needs, a report."""

    def __init__(
        self,
        connection: EngineConnection,
        max_samples: int = Limits().query_max_samples,
        vector_text: VectorText | None = None,
        *,
        holds_memory: bool = False,
    ) -> None:
        self.connection = connection
        self._max_samples = max_samples
        self._vector_text = vector_text
        self._held: MemoryShare | None = connection.memory.share() if holds_memory else None
        self._hides_resets: bool | None = None

    @property
    def name(self) -> str:
        return self.connection.url

    async def instant(
        self,
        expression: str,
        at_ms: int | None = None,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Vector:
        form = {"query": expression, **_EXACT_TIMES, **_timeout(timeout_seconds)}
        if at_ms is not None:
            form["time"] = _seconds(at_ms)
        if self._vector_text is not None:
            return await self._read_text(self._vector_text, form, max_series)
        rows = VectorRows(max_series)
        async with self._share() as share:
            frame = await self.connection.read_series("query", form, rows.add, share)
            return self._checked(frame, rows.to_vector)

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
        times = {"start": _seconds(start_ms), "end": _seconds(end_ms), "step": f"{step_ms}ms"}
        form = {"query": expression, **times, **_EXACT_TIMES, **_timeout(timeout_seconds)}
        # A step in seconds would lose a millisecond in Prometheus' floats, and the times would drift.
        steps = Steps.between(start_ms, end_ms, max(1, step_ms))
        rows = MatrixRows(steps, max_series, self._max_samples)
        async with self._share() as share:
            frame = await self.connection.read_series("query_range", form, rows.add, share)
            return self._checked(frame, rows.to_matrix)

    async def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_series: int | None = None,
    ) -> list[Labels]:
        form = {"match[]": selectors, **_span(start_ms, end_ms)}
        label_sets: list[Labels] = []

        def add(elements: list[Any]) -> int:
            labels = list(map(read_labels, elements))
            label_sets.extend(labels)
            check_size(len(label_sets), max_series, "series")
            return labels_bytes(labels)

        response = await self.connection.open("series", "POST", "/api/v1/series", data=form)
        await self._read_list(response, "data", add)
        return sorted(label_sets)

    async def label_values(
        self,
        label: str,
        selectors: Sequence[str] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_values: int | None = None,
    ) -> list[str]:
        # Prometheus takes no POST here.
        parameters = [
            *(("match[]", selector) for selector in selectors), *_span(start_ms, end_ms).items()
        ]  # fmt: skip
        query = "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in parameters)
        path = f"/api/v1/label/{quote(label, safe='')}/values?{query}"
        values: list[str] = []

        def add(elements: list[Any]) -> int:
            values.extend(map(_text, elements))
            check_size(len(values), max_values, "values")
            return sum(_TEXT_BYTES + text_bytes(element) for element in elements)

        await self._read_list(await self.connection.open("label_values", "GET", path), "data", add)
        return sorted(values)

    async def describe(self) -> EngineInfo:
        """Empty fields where the engine has no such endpoint; EngineError if it does not answer at all."""
        build = await self._get_status("buildinfo")
        runtime = await self._get_status("runtimeinfo")
        retention = read_retention(str(runtime.get("storageRetention", "")))
        return EngineInfo(
            _read_product(build),
            str(build.get("version", ""))[:MAX_QUOTED_CHARACTERS],
            retention,
            filled_until_ms=_read_time(runtime.get("historyFilledUntil")),
        )

    async def hides_resets(self) -> bool:
        """Asked once; False while the engine does not say what it is."""
        if self._hides_resets is None:
            try:
                build = await self._get_status("buildinfo")
            except EngineError:
                return False
            self._hides_resets = _read_product(build) == "Thanos"
        return self._hides_resets

    async def scrape_errors(self) -> ScrapeErrors:
        """Empty where the engine does not scrape: Thanos and Mimir have no targets."""
        errors: ScrapeErrors = {}

        def add(elements: list[Any]) -> int:
            errors.update(read_scrape_errors(elements))
            return _TARGET_BYTES * len(elements)

        try:
            response = await self.connection.open("targets", "GET", "/api/v1/targets?state=active")
            await self._read_list(response, "activeTargets", add)
        except EngineError:
            return {}
        return errors

    async def find_problem(self) -> str:
        """Empty if the engine answers a query, else one sentence."""
        try:
            await self.instant("vector(1)")
        except EngineError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        if self._held is not None:
            self._held.release()
        await self.connection.close()

    @asynccontextmanager
    async def _share(self) -> AsyncIterator[MemoryShare]:
        """For one result."""
        share = self._held or self.connection.memory.share()
        share.release()  # of the result before
        try:
            yield share
        finally:
            if share is not self._held:
                share.release()

    async def _read_text(self, text: VectorText, form: Form, max_series: int | None) -> Vector:
        rows, is_read = text.begin(max_series), False
        try:
            frame = await self.connection.read_series("query", form, rows.add, text.share)
            is_read = True
        finally:
            text.end(is_read=is_read)
        return self._checked(frame, rows.to_vector)

    async def _read_list(
        self, response: EngineResponse, key: str, add: Callable[[list[Any]], int]
    ) -> Mapping[str, Any]:
        async with self._share() as share:
            return await self.connection.read_list(response, key, add, share)

    async def _get_status(self, page: str) -> Mapping[str, Any]:
        try:
            answer = await self.connection.get(f"status_{page}", f"/api/v1/status/{page}")
        except EngineEndpointMissing:
            return {}
        data = answer.get("data")
        return data if isinstance(data, dict) else {}

    def _checked(self, answer: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
        try:
            return read(answer)
        except _MALFORMED as error:
            raise self.connection.invalid_answer(error) from None


def read_scrape_errors(targets: Sequence[Any]) -> ScrapeErrors:
    return {
        (str(target["labels"].get("job", "")), str(target["labels"].get("instance", ""))): (
            str(target.get("scrapeUrl", ""))[:MAX_QUOTED_CHARACTERS],
            str(target.get("lastError", ""))[:MAX_QUOTED_CHARACTERS],
        )
        for target in targets
    }


def _read_product(build: Mapping[str, Any]) -> str:
    application = str(build.get("application", ""))
    if application:
        return application.removeprefix("Grafana ")[:MAX_QUOTED_CHARACTERS]
    if "goVersion" in build:
        # Thanos gives the same fields as Prometheus, with its own version 0.x.
        return "Thanos" if str(build.get("version", "")).startswith("0.") else "Prometheus"
    return "VictoriaMetrics" if "version" in build else ""


def read_retention(text: str) -> int | None:
    """Of `15d`, `1y or 1GiB`, `1GiB`."""
    for part in text.split(" or ") if text else ():
        try:
            return parse_prometheus_duration(part)
        except ValueError:
            continue
    return None


def _read_time(value: object) -> int | None:
    """Only gpuscope says it."""
    try:
        return round(parse_rfc3339(str(value)) * 1000)
    except ValueError:
        return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a label value {str(value)[:100]}")
    return value


def _seconds(milliseconds: int) -> str:
    """Exact: a float of seconds would not be, beyond the year 2255."""
    whole, rest = divmod(abs(milliseconds), 1000)
    return f"{'-' if milliseconds < 0 else ''}{whole}.{rest:03d}"


def _span(start_ms: int | None, end_ms: int | None) -> dict[str, str]:
    return {name: _seconds(at) for name, at in (("start", start_ms), ("end", end_ms)) if at is not None}


def _timeout(seconds: float | None) -> dict[str, str]:
    # Prometheus reads a bare number as seconds; a unit with a fraction ("1.500s") is an error there.
    return {} if seconds is None else {"timeout": f"{seconds:.3f}"}
