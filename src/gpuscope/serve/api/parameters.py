"""Parameters of a request, from URL and form: times, durations and selectors as Prometheus' API reads them.

A missing parameter has a default or gives Prometheus' own error; of a repeated one the first counts, the form's
before the URL's. A pair that cannot be unescaped is ignored, except by endpoints that check `malformed`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.promql import BadQueryError
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.promql.labels import quote
from gpuscope.history.store.series_pairs import predicate
from gpuscope.model.series import Matcher
from gpuscope.serve.api.go_values import parse_duration_ms, parse_int, parse_time_ms
from gpuscope.serve.http.messages import BodyTooLarge, ClientDisconnected, Request

MAX_OTHER_PARAMETERS = 100
"""Of a request, beside its match[]."""
MAX_FORM_BYTES = 1 << 20
NO_MATCHER = "match[] must contain at least one non-empty matcher"

STATUS_CODES = {
    "bad_data": 400,
    "execution": 422,
    "canceled": 499,
    "timeout": 503,
    "internal": 500,
    "not_found": 404,
    "unavailable": 500,  # Prometheus 3.5 has no status of its own for it
}

Pairs = Sequence[tuple[str, str]]


class ApiError(Exception):
    """An answer in Prometheus' error shape."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


def bad(name: str, message: object) -> ApiError:
    return ApiError("bad_data", f'invalid parameter "{name}": {message}')


@dataclass(frozen=True, slots=True)
class Parameters:
    """`pairs` are the form's and then the URL's; `in_url` only those of the URL."""

    pairs: Pairs
    in_url: Pairs = ()
    malformed: str = ""
    max_selectors: int = Limits().query_max_selectors

    def get(self, name: str, default: str = "") -> str:
        for key, value in self.pairs:
            if key == name:
                return value
        return default

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]

    def from_url(self, name: str) -> str:
        """For the few parameters that Prometheus does not read from a form."""
        return next((value for key, value in self.in_url if key == name), "")

    def time_ms(self, name: str, default_ms: int | None = None) -> int:
        text = self.get(name)
        if not text and default_ms is not None:
            return default_ms
        try:
            return parse_time_ms(text)
        except ValueError as error:
            # A parameter that may be left out is named twice, as Prometheus does it.
            raise bad(
                name, error if default_ms is None else f"invalid time value for '{name}': {error}"
            ) from None

    def span_ms(self) -> tuple[int | None, int | None]:
        """`start` and `end`, both optional."""
        start, end = (self.time_ms(name, 0) if self.get(name) else None for name in ("start", "end"))
        return start, end

    def duration_ms(self, name: str) -> int:
        try:
            return parse_duration_ms(self.get(name))
        except ValueError as error:
            raise bad(name, error) from None

    def seconds(self, name: str) -> float | None:
        """An optional duration, in seconds."""
        return self.duration_ms(name) / 1000 if self.get(name) else None

    def lookback_ms(self) -> int | None:
        """None for the engine's default, as for zero and negative durations."""
        text = self.get("lookback_delta")
        if not text:
            return None
        try:
            length = parse_duration_ms(text)
        except ValueError as error:
            raise ApiError("bad_data", f"error parsing lookback delta duration: {error}") from None
        return length if length > 0 else None

    def limit(self) -> int | None:
        """The maximum number of results; None (0, or not given) is no limit."""
        text = self.get("limit")
        if not text:
            return None
        try:
            limit = parse_int(text)
        except ValueError as error:
            raise bad("limit", error) from None
        if limit < 0:
            raise bad("limit", "limit must be non-negative")
        return limit or None

    def number(self, name: str) -> int:
        """An optional limit; -1 if it is not given."""
        text = self.get(name)
        try:
            return parse_int(text) if text else -1
        except ValueError:
            raise ApiError("bad_data", f"{name} must be a number") from None

    def well_formed(self) -> None:
        if self.malformed:
            raise ApiError("bad_data", f"error parsing form values: {self.malformed}")

    def parsed_selectors(self) -> list[list[Matcher]]:
        """The matchers of each `match[]`. Not for the event loop: a thousand take a quarter of a second."""
        texts = self.all("match[]")
        if len(texts) > self.max_selectors:
            raise self._too_many(len(texts))
        return [parse_selector(text) for text in texts]

    def _too_many(self, count: int) -> ApiError:
        LIMITS_REACHED.count("query_max_selectors")
        return ApiError(
            "bad_data",
            f"{count} match[] parameters; at most {self.max_selectors} are read (query_max_selectors)",
        )

    def selectors(self) -> list[list[Matcher]]:
        """As `parsed_selectors`; each must select something."""
        try:
            selectors = self.parsed_selectors()
        except BadQueryError as error:
            raise ApiError("bad_data", str(error)) from None
        if any(all(predicate(matcher)("") for matcher in matchers) for matchers in selectors):
            raise ApiError("bad_data", NO_MATCHER)
        return selectors


async def read_parameters(request: Request, limits: Limits) -> Parameters:
    """Form before query, as Go's `FormValue`; a form too large is refused before it is read."""
    most = limits.query_max_selectors + MAX_OTHER_PARAMETERS
    pairs, malformed = parse_form(request.query, most)
    in_url = pairs
    if request.method in ("POST", "PUT"):
        body = await read_body(request)
        kind = request.header("content-type").partition(";")[0].strip().lower()
        if body and kind == "application/x-www-form-urlencoded":
            posted, problem = parse_form(body, most)
            pairs, malformed = [*posted, *pairs], problem or malformed
    return Parameters(pairs, in_url, malformed, limits.query_max_selectors)


async def read_body(request: Request) -> bytes:
    try:
        return await request.body.read(MAX_FORM_BYTES)
    except BodyTooLarge:
        raise ApiError("bad_data", f"the form is larger than {MAX_FORM_BYTES} bytes") from None
    except ClientDisconnected:
        raise ApiError("canceled", "the request ended early") from None


def parse_form(encoded: bytes, most: int) -> tuple[list[tuple[str, str]], str]:
    """The valid pairs, and the error of the first invalid one, as Go's `ParseQuery`."""
    if encoded.count(b"&") > most:  # a megabyte of them would keep the event loop for half a second
        LIMITS_REACHED.count("query_max_selectors")
        raise ApiError("bad_data", f"more than {most} parameters (query_max_selectors)")
    pairs: list[tuple[str, str]] = []
    problem = ""
    for part in encoded.split(b"&"):
        if b";" in part:
            problem = problem or "invalid semicolon separator in query"
            continue
        if not part:
            continue
        name, _, value = part.partition(b"=")
        if b"%" in part and (wrong := _bad_escape(name) or _bad_escape(value)):
            problem = problem or f"invalid URL escape {quote(wrong)}"
            continue
        pairs.append((_unescape(name), _unescape(value)))
    return pairs, problem


_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)


def _bad_escape(text: bytes) -> str:
    match = _BAD_ESCAPE.search(text)
    return match[0].decode("utf-8", "replace") if match else ""


def _unescape(text: bytes) -> str:
    # Bytes that are not UTF-8 stay recognisable: the parser and `quote` handle lone surrogates.
    if b"%" in text or b"+" in text:
        text = unquote_to_bytes(text.replace(b"+", b" "))
    return text.decode("utf-8", "surrogateescape")
