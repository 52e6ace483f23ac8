"""Alertmanager's template functions (0.34). `now` and `since` take the time from the caller's clock.

`routeLabels` expands a label of the route, which may itself be a template; the caller passes the function that
does it, because only the route knows its labels.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.rules.templates.go_json import to_json
from gpuscope.judge.rules.templates.go_time import ZERO_TIME_SECONDS, GoDuration, GoTime, parse_time, parse_zone
from gpuscope.judge.rules.templates.humanize import humanize_duration
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoFunction,
    GoValue,
    SafeHtml,
    SafeUrl,
    StringList,
)
from gpuscope.judge.rules.templates.template_values import go_type as type_name
from gpuscope.judge.rules.templates.text_functions import (
    DEFAULT_MAX_LENGTH,
    matches,
    replace_all,
    title_case,
    to_lower,
    to_upper,
)

_ZERO_TIME = GoTime(ZERO_TIME_SECONDS * 1_000_000_000)


def _to_date(layout: str, text: str) -> GoTime:
    try:
        return parse_time(layout, text)
    except FunctionFailed:
        return _ZERO_TIME


def _url_unescape(text: str) -> str:
    position = text.find("%")
    while position >= 0:
        digits = text[position + 1 : position + 3]
        if len(digits) < 2 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise FunctionFailed(f'invalid URL escape "{text[position : position + 3]}"')
        position = text.find("%", position + 3)
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


def _base64decode(text: str) -> str:
    plain = text.replace("\r", "").replace("\n", "")
    try:
        if "+" in plain or "/" in plain or len(plain) % 4:
            raise binascii.Error
        return base64.b64decode(plain, altchars=b"-_", validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        raise FunctionFailed("illegal base64 data at input byte 0") from None


def _join(separator: str, items: list[str], max_length: int) -> str:
    if sum(map(len, items)) + len(separator) * len(items) > max_length:
        LIMITS_REACHED.count("template_max_output_bytes")
        raise FunctionFailed(f"the text is longer than {max_length} characters")
    return separator.join(items)


def _dict(*values: GoValue) -> dict[str, GoValue]:
    if len(values) % 2:
        raise FunctionFailed("dict requires an even number of arguments")
    keys = values[::2]
    if any(type_name(key) != "string" for key in keys):
        raise FunctionFailed("dict keys must be strings")
    return dict(zip(keys, values[1::2], strict=True))


def alertmanager_functions(
    now: Callable[[], GoTime] = lambda: _ZERO_TIME,
    route_label: Callable[[str], str] = lambda name: "",
    max_length: int = DEFAULT_MAX_LENGTH,
) -> dict[str, GoFunction]:
    text, time = ("string",), ("time.Time",)
    return {
        "toUpper": GoFunction(text, to_upper),
        "toLower": GoFunction(text, to_lower),
        "title": GoFunction(text, lambda one: title_case(one, lower_rest=True)),
        "trimSpace": GoFunction(text, str.strip),
        "join": GoFunction((*text, "[]string"), lambda separator, items: _join(separator, items, max_length)),
        "match": GoFunction(text * 2, matches),
        "safeHtml": GoFunction(text, SafeHtml),
        "safeUrl": GoFunction(text, SafeUrl),
        "urlUnescape": GoFunction(text, _url_unescape),
        "reReplaceAll": GoFunction(text * 3, lambda a, b, c: replace_all(a, b, c, max_length)),
        "stringSlice": GoFunction(text, lambda *items: StringList(items), is_variadic=True),
        "routeLabels": GoFunction(text, route_label),
        "date": GoFunction((*text, *time), lambda layout, moment: moment.format(layout)),
        "tz": GoFunction((*text, *time), lambda name, moment: moment.in_zone(parse_zone(name))),
        "now": GoFunction((), now),
        "since": GoFunction(time, lambda moment: GoDuration(now().nanoseconds - moment.nanoseconds)),
        "humanizeDuration": GoFunction(("any",), humanize_duration),
        "toDate": GoFunction(text * 2, _to_date),
        "mustToDate": GoFunction(text * 2, parse_time),
        "toJson": GoFunction(("any",), lambda value: to_json(value, max_length)),
        "base64encode": GoFunction(
            text, lambda one: base64.urlsafe_b64encode(one.encode("utf-8", "replace")).decode()
        ),
        "base64decode": GoFunction(text, _base64decode),
        "list": GoFunction(("any",), lambda *items: list(items), is_variadic=True),
        "append": GoFunction(("[]interface {}", "any"), lambda items, *more: [*items, *more], is_variadic=True),
        "dict": GoFunction(("any",), _dict, is_variadic=True),
    }
