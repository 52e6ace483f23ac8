"""What Alertmanager checks of a request before its handlers see it: media types, body, parameters, ids, URIs.

`RefusedRequest` is an answer `{"code", "message"}`, as Alertmanager's generated HTTP layer writes it; mistakes
that its own handlers find are answered with a JSON text. Numbers of `code` above 600 are that layer's.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator
from typing import NoReturn
from urllib.parse import unquote_to_bytes

from gpuscope.base.anchored_regex import compile_anchored
from gpuscope.base.go_quote import quote
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.notify.alert_matchers import AlertMatcher, parse_matcher
from gpuscope.serve.http.messages import Request

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_HOST_ESCAPE = re.compile(r"%(?!25|[89A-Fa-f][0-9A-Fa-f])")
"""In a host only bytes beyond ASCII may be escaped, and `%` itself."""
_USER = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_HOST = re.compile(r"""[A-Za-z0-9\-._~!$&'()*+,;=:\[\]<>"%\u0080-\U0010ffff]*""")
_PORT = re.compile(r"(:[0-9]*)?")
INVALID_TYPE, REQUIRED, TOO_FEW_ITEMS = 601, 602, 612
MAX_PARAMETERS = 100
_TRUE_WORDS = frozenset(("true", "1", "yes", "ok", "y", "on", "selected", "checked", "t", "enabled"))
_BAD_QUERY_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_HEX = "[0-9a-fA-F]"
_PLAIN_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_UUID = re.compile(rf"(urn:uuid:)?{_PLAIN_UUID}|\{{{_PLAIN_UUID}\}}|{_HEX}{{32}}")


def is_request_uri(text: str) -> bool:
    """As Go's `url.ParseRequestURI`: it has a scheme or begins with `/`. Query and fragment may hold anything
    but control characters."""
    if not text or _CONTROL.search(text):
        return False
    if text == "*":
        return True
    match = _SCHEME.fullmatch(text)
    if match is None and text.startswith(":"):
        return False
    scheme, rest = match.groups() if match else ("", text)
    rest = rest.partition("?")[0]
    if not rest.startswith("/"):
        return bool(scheme)
    if scheme and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        return _is_authority(authority) and _BAD_ESCAPE.search(slash + path) is None
    return _BAD_ESCAPE.search(rest) is None


def _is_authority(authority: str) -> bool:
    user, at, host = authority.rpartition("@")
    if at and (not _USER.fullmatch(user) or _BAD_ESCAPE.search(user)):
        return False
    if "[" in host:
        return _is_ip_literal(host)
    # Some schemes have lists of hosts, so only what follows the last colon must be a port.
    if ":" in host and not _PORT.fullmatch(host[host.rindex(":") :]):
        return False
    return _HOST.fullmatch(host) is not None and _BAD_HOST_ESCAPE.search(host) is None


def _is_ip_literal(host: str) -> bool:
    """`[fe80::1%25eth0]:80`"""
    inside, closing, port = host[1:].rpartition("]")
    address, zone_mark, zone = inside.partition("%25")
    if not host.startswith("[") or "[" in inside or not closing or not _PORT.fullmatch(port):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not zone_mark or (bool(zone) and _BAD_ESCAPE.search(zone) is None)


class RefusedRequest(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class InvalidRequest(Exception):
    """A handler's own 400 answer: a JSON text."""


def malformed(what: str, why: str) -> RefusedRequest:
    """The body, `alerts` or `silence`, is no JSON of the right types."""
    return RefusedRequest(400, 400, f'parsing {what} body from "" failed, because {why}')


def required(field: str) -> RefusedRequest:
    return RefusedRequest(422, REQUIRED, f"{field} in body is required")


def check_media_types(request: Request) -> None:
    """`Accept` must allow JSON. A body must be declared as JSON, which a form of another site cannot do."""
    accepted = request.header("accept")
    if accepted and not any(map(_allows_json, accepted.split(","))):
        why = "unsupported media type requested, only [application/json] are available"
        raise RefusedRequest(406, 406, why)


def check_content_type(request: Request) -> None:
    given = request.header("content-type") or "application/octet-stream"
    media_type = given.partition(";")[0].strip().lower()
    if media_type.count("/") != 1 or media_type.startswith("/") or media_type.endswith("/"):
        why = f'parsing Content-Type header from "{given}" failed, because it is not a media type'
        raise RefusedRequest(400, 400, why)
    if media_type != "application/json":
        why = f'unsupported media type "{media_type}", only [application/json] are allowed'
        raise RefusedRequest(415, 415, why)


def _allows_json(media_range: str) -> bool:
    return media_range.partition(";")[0].strip().lower() in ("application/json", "application/*", "*/*")


def load_body(body: bytes, what: str, limits: Limits) -> object:
    """The first JSON value; the rest is ignored, and bytes that are not UTF-8 are replaced, as Go does it."""
    if not body:
        raise required(what)
    # Before it is parsed: each value takes 50 bytes and more, also an empty one.
    if sum(map(body.count, (b",", b"[", b"{"))) > (most := limits.max_alerts_request_values):
        LIMITS_REACHED.count("max_alerts_request_values")
        raise InvalidRequest(f"more than {most} values (max_alerts_request_values); send fewer alerts at once")
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    try:
        document: object
        document, _ = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(text)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        raise malformed(what, f"the body is not JSON: {why}") from None
    return document


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def check_silence_id(text: str) -> None:
    if not _UUID.fullmatch(text):
        why = f"silenceID in path must be of type uuid: {quote(text)}"
        raise RefusedRequest(422, INVALID_TYPE, why)


class RequestParameters:
    """Of the query string; a pair that cannot be decoded is left out, as Go does it."""

    def __init__(self, request: Request) -> None:
        self._values: dict[str, list[str]] = {}
        for number, (name, value) in enumerate(_pairs(request.query)):
            if number >= MAX_PARAMETERS:
                raise InvalidRequest(f"more than {MAX_PARAMETERS} parameters")
            self._values.setdefault(name, []).append(value)

    def switch(self, name: str) -> bool:
        """True unless it has a value that is none of these words, as in Alertmanager."""
        value = self._values.get(name, [""])[-1]
        return not value or value.lower() in _TRUE_WORDS

    def filters(self) -> list[AlertMatcher]:
        return self._matchers("filter", "")

    def receiver_matchers(self) -> list[AlertMatcher]:
        return self._matchers("receiver_matchers", "failed to parse receiver_matchers param: ")

    def _matchers(self, name: str, prefix: str) -> list[AlertMatcher]:
        try:
            return [parse_matcher(text) for text in self._values.get(name, ())]
        except ValueError as error:
            raise InvalidRequest(f"{prefix}{error}") from None

    def regex(self, name: str) -> Callable[[str], bool] | None:
        text = self._values.get(name, [""])[-1]
        if not text:
            return None
        try:
            pattern = compile_anchored(text, dot_matches_newline=False)
        except ValueError as error:
            raise InvalidRequest(f"failed to parse {name} param: {error}") from None
        return lambda text: pattern.fullmatch(text) is not None


def _pairs(query: bytes) -> Iterator[tuple[str, str]]:
    for pair in query.split(b"&"):
        if pair and b";" not in pair and not _BAD_QUERY_ESCAPE.search(pair):
            name, _, value = pair.partition(b"=")
            yield _decoded(name), _decoded(value)


def _decoded(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "replace")
