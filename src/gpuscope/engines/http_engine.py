"""`QueryEngine` over a Prometheus-compatible HTTP API.

`nocache=1` is for VictoriaMetrics: without it, it moves the times of a range query to multiples of the step and
answers an instant query of the last 30 seconds with older samples. Other engines ignore it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

from gpuscope.engines.engine_errors import EngineEndpointMissing, EngineError
from gpuscope.engines.http_connection import MAX_QUOTED_CHARACTERS, EngineConnection, Form
from gpuscope.engines.json_results import read_labels, read_matrix, read_vector
from gpuscope.engines.query_engine import EngineInfo, check_size
from gpuscope.engines.vector_text import VectorText
from gpuscope.limits import Limits
from gpuscope.promql.frame import Steps
from gpuscope.promql.result import Matrix, Vector
from gpuscope.series import Labels
from gpuscope.setting_values import parse_duration

T = TypeVar("T")
ScrapeErrors = dict[tuple[str, str], tuple[str, str]]
"""By job and instance: the scraped URL and the last error."""

_DAY_MS: Final = 86_400_000
_LARGE_BODY_BYTES: Final = 1 << 18
_EXACT_TIMES: Final = {"nocache": "1"}
_MALFORMED: Final = (KeyError, IndexError, TypeError, AttributeError, ValueError)


class HttpEngine:
    """Belongs to one event loop, as its connection does. With `vector_text`, instant queries are read with it:
    for a caller that repeats a few queries with very many series."""

    def __init__(
        self,
        connection: EngineConnection,
        max_samples: int = Limits().query_max_samples,
        vector_text: VectorText | None = None,
    ) -> None:
        self.connection = connection
        self._max_samples = max_samples
        self._vector_text = vector_text
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
            return await self._post_for_text(self._vector_text, form, max_series)
        return await self._post("query", form, lambda answer: read_vector(answer, max_series))

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

        def read(answer: Mapping[str, Any]) -> Matrix:
            return read_matrix(answer, steps, max_series=max_series, max_samples=self._max_samples)

        return await self._post("query_range", form, read)

    async def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None = None,
        end_ms: int | None = None,
        *,
        max_series: int | None = None,
    ) -> list[Labels]:
        found = await self._post(
            "series",
            {"match[]": selectors, **_span(start_ms, end_ms)},
            lambda answer: sorted(map(read_labels, answer["data"])),
        )
        check_size(len(found), max_series, "series")
        return found

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
            *(("match[]", one) for one in selectors), *_span(start_ms, end_ms).items()
        ]  # fmt: skip
        query = "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in parameters)
        path = f"/api/v1/label/{quote(label, safe='')}/values?{query}"
        answer = await self.connection.get("label_values", path)
        found = self._checked(answer, lambda answer: sorted(map(_text, answer["data"])))
        check_size(len(found), max_values, "values")
        return found

    async def describe(self) -> EngineInfo:
        """Empty fields where the engine has no such endpoint; EngineError if it does not answer at all."""
        build = await self._get_status("buildinfo")
        runtime = await self._get_status("runtimeinfo")
        retention = _read_retention(str(runtime.get("storageRetention", "")))
        return EngineInfo(
            _read_product(build), str(build.get("version", ""))[:MAX_QUOTED_CHARACTERS], retention
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
        try:
            answer = await self.connection.get("targets", "/api/v1/targets?state=active")
            return self._checked(answer, read_scrape_errors)
        except EngineError:
            return {}

    async def find_problem(self) -> str:
        """Empty if the engine answers a query, else one sentence."""
        try:
            await self.instant("vector(1)")
        except EngineError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        await self.connection.close()

    async def _get_status(self, page: str) -> Mapping[str, Any]:
        try:
            answer = await self.connection.get(f"status_{page}", f"/api/v1/status/{page}")
        except EngineEndpointMissing:
            return {}
        data = answer.get("data")
        return data if isinstance(data, dict) else {}

    async def _post(self, endpoint: str, form: Form, read: Callable[[Mapping[str, Any]], T]) -> T:
        return self._checked(await self.connection.post_form(endpoint, form), read)

    async def _post_for_text(self, text: VectorText, form: Form, max_series: int | None) -> Vector:
        body, status = await self.connection.post_form_body("query", form)

        def read() -> Vector:
            found = text.read(body, max_series)
            if found is not None:
                return found
            answer = self.connection.decode(body, status)
            return self._checked(answer, lambda answer: read_vector(answer, max_series))

        # Reading 60 MB takes a second, in which the event loop has other clients.
        return await asyncio.to_thread(read) if len(body) > _LARGE_BODY_BYTES else read()

    def _checked(self, answer: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
        try:
            return read(answer)
        except _MALFORMED as error:
            raise self.connection.invalid_answer(error) from None


def read_scrape_errors(answer: Mapping[str, Any]) -> ScrapeErrors:
    return {
        (str(target["labels"].get("job", "")), str(target["labels"].get("instance", ""))): (
            str(target.get("scrapeUrl", ""))[:MAX_QUOTED_CHARACTERS],
            str(target.get("lastError", ""))[:MAX_QUOTED_CHARACTERS],
        )
        for target in answer["data"]["activeTargets"]
    }


def _read_product(build: Mapping[str, Any]) -> str:
    application = str(build.get("application", ""))
    if application:
        return application.removeprefix("Grafana ")[:MAX_QUOTED_CHARACTERS]
    if "goVersion" in build:
        # Thanos gives the same fields as Prometheus, with its own version 0.x.
        return "Thanos" if str(build.get("version", "")).startswith("0.") else "Prometheus"
    return "VictoriaMetrics" if "version" in build else ""


def _read_retention(text: str) -> int | None:
    """Of `15d`, `1y or 1GiB`, `1GiB`."""
    for part in text.split(" or ") if text else ():
        years, has_years, rest = part.rpartition("y")
        try:
            days = 365 * int(years) if has_years else 0
            return days * _DAY_MS + (round(parse_duration(rest) * 1000) if rest else 0)
        except ValueError:
            continue
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
