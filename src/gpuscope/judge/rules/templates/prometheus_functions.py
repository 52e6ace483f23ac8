"""Prometheus' template functions, and the data of an alert's labels and annotations.

    functions = prometheus_functions()                        # for parse(): which names exist
    template.expand(data, prometheus_functions(query, now))   # for one evaluation

A query that fails raises FunctionFailed, or any exception, whose text becomes the template's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from gpuscope.judge.rules.templates.builtin_functions import query_escape
from gpuscope.judge.rules.templates.go_format import DEFAULT_MAX_LENGTH
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoFunction,
    GoStruct,
    SafeHtml,
    StringMap,
)
from gpuscope.judge.rules.templates.text_functions import (
    graph_link,
    humanize,
    humanize1024,
    humanize_duration,
    humanize_percentage,
    humanize_timestamp,
    matches,
    parse_duration_seconds,
    replace_all,
    strip_domain,
    strip_port,
    title_case,
    to_duration,
    to_lower,
    to_time,
    to_upper,
)

ALERT_PRELUDE = (
    "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}"
    "{{$externalURL := .ExternalURL}}{{$value := .Value}}"
)
"""Prometheus puts these definitions before every label and annotation; columns in its errors count them."""

VectorQuery = Callable[[str], Iterable[tuple[Mapping[str, str], float]]]
"""From PromQL to the labels and value of each sample, evaluated at the time of the rule."""


@dataclass(frozen=True, slots=True)
class AlertData(GoStruct):
    """What a label or annotation of an alerting rule is expanded with."""

    labels: StringMap
    """Of the sample, `__name__` included; not those of the alert."""
    value: float
    external_labels: StringMap
    external_url: str = ""
    GO_TYPE: ClassVar[str] = (
        "struct { Labels map[string]string; ExternalLabels map[string]string; ExternalURL string; "
        "Value interface {} }"
    )
    FIELDS: ClassVar[Mapping[str, str]] = {
        "Labels": "labels",
        "ExternalLabels": "external_labels",
        "ExternalURL": "external_url",
        "Value": "value",
    }


def alert_data(
    labels: Mapping[str, str], value: float, external_labels: Mapping[str, str], external_url: str
) -> AlertData:
    return AlertData(StringMap(labels), float(value), StringMap(external_labels), external_url)


@dataclass(frozen=True, slots=True)
class QuerySample(GoStruct):
    labels: StringMap
    value: float
    GO_TYPE: ClassVar[str] = "*template.sample"
    FIELDS: ClassVar[Mapping[str, str]] = {"Labels": "labels", "Value": "value"}


class QueryResult(list[QuerySample]):
    GO_TYPE = "template.queryResult"


def _no_query(expression: str) -> Iterable[tuple[Mapping[str, str], float]]:
    raise FunctionFailed("no queries here")


def _query(run: VectorQuery, expression: str) -> QueryResult:
    try:
        return QueryResult(QuerySample(StringMap(labels), float(value)) for labels, value in run(expression))
    except FunctionFailed:
        raise
    except Exception as error:  # whatever the engine raises is this template's error, not the rule's
        raise FunctionFailed(str(error)) from error


def _first(samples: QueryResult | None) -> QuerySample:
    if not samples:
        raise FunctionFailed("first() called on vector with no elements")
    return samples[0]


def _of(sample: QuerySample | None) -> QuerySample:
    if sample is None:
        raise FunctionFailed("runtime error: invalid memory address or nil pointer dereference")
    return sample


def _sort_by_label(label: str, samples: QueryResult | None) -> QueryResult:
    return QueryResult(sorted(samples or (), key=lambda sample: sample.labels.get(label, "")))


def prometheus_functions(
    query: VectorQuery = _no_query,
    now_seconds: float = 0.0,
    external_url: str = "",
    max_length: int = DEFAULT_MAX_LENGTH,
) -> dict[str, GoFunction]:
    """`now_seconds` is the time of the evaluation, `max_length` the limit of a text that a function returns."""
    base_url = external_url.rstrip("/")
    vector, sample, text = ("template.queryResult",), ("*template.sample",), ("string",)
    return {
        "query": GoFunction(text, lambda expression: _query(query, expression)),
        "first": GoFunction(vector, _first),
        "label": GoFunction((*text, *sample), lambda name, value: _of(value).labels.get(name, "")),
        "value": GoFunction(sample, lambda value: _of(value).value),
        "strvalue": GoFunction(sample, lambda value: _of(value).labels.get("__value__", "")),
        "sortByLabel": GoFunction((*text, *vector), _sort_by_label),
        "args": GoFunction(
            ("any",), lambda *values: {f"arg{number}": value for number, value in enumerate(values)}, True
        ),
        "reReplaceAll": GoFunction(text * 3, lambda a, b, c: replace_all(a, b, c, max_length)),
        "match": GoFunction(text * 2, matches),
        "safeHtml": GoFunction(text, SafeHtml),
        "title": GoFunction(text, lambda value: title_case(value, lower_rest=False)),
        "toUpper": GoFunction(text, to_upper),
        "toLower": GoFunction(text, to_lower),
        "graphLink": GoFunction(text, lambda expression: graph_link(expression, 0)),
        "tableLink": GoFunction(text, lambda expression: graph_link(expression, 1)),
        "stripPort": GoFunction(text, strip_port),
        "stripDomain": GoFunction(text, strip_domain),
        "humanize": GoFunction(("any",), humanize),
        "humanize1024": GoFunction(("any",), humanize1024),
        "humanizeDuration": GoFunction(("any",), humanize_duration),
        "humanizePercentage": GoFunction(("any",), humanize_percentage),
        "humanizeTimestamp": GoFunction(("any",), humanize_timestamp),
        "toTime": GoFunction(("any",), to_time),
        "toDuration": GoFunction(("any",), to_duration),
        "now": GoFunction((), lambda: now_seconds),
        "pathPrefix": GoFunction((), lambda: urlsplit(base_url).path),
        "externalURL": GoFunction((), lambda: base_url),
        "parseDuration": GoFunction(text, parse_duration_seconds),
        "urlQueryEscape": GoFunction(text, query_escape),
    }
