"""Escaping of one value for one place in an HTML text, byte for byte as Go's html/template.

`SafeHtml` and `SafeUrl` values are what a template's author vouches for. A value that must not stand in its
place becomes `ZgotmplZ`, Go's word for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import re2

from gpuscope.judge.rules.templates.go_format import format_print
from gpuscope.judge.rules.templates.go_json import to_json
from gpuscope.judge.rules.templates.go_time import GoTime
from gpuscope.judge.rules.templates.html_attributes import Content, name_content
from gpuscope.judge.rules.templates.html_context import HtmlState
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoStruct,
    GoValue,
    SafeHtml,
    SafeUrl,
    Stringer,
)

REFUSED = "ZgotmplZ"
_HTML = {0: "\ufffd", 34: "&#34;", 38: "&amp;", 39: "&#39;", 43: "&#43;", 60: "&lt;", 62: "&gt;"}
_HTML_NORMAL = {code: text for code, text in _HTML.items() if code != 38}
_SPACES = {9: "&#9;", 10: "&#10;", 11: "&#11;", 12: "&#12;", 13: "&#13;", 32: "&#32;", 61: "&#61;", 96: "&#96;"}
_NONCHARACTERS = {code: f"&#x{code:x};" for code in (*range(0xFDD0, 0xFDF0), *range(0xFFF0, 0x10000))}
_UNQUOTED = {**_HTML, **_SPACES, 0: "&#xfffd;", **_NONCHARACTERS}
_UNQUOTED_NORMAL = {code: text for code, text in _UNQUOTED.items() if code != 38}

_SCRIPT_CONTROL = {
    **{code: f"\\u{code:04x}" for code in range(32)}, 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r",
    0x2028: "\\u2028", 0x2029: "\\u2029",
}  # fmt: skip
_SCRIPT_STRING = {
    **_SCRIPT_CONTROL, **{ord(c): f"\\u{ord(c):04x}" for c in "\"`&'+<>"}, 47: "\\/", 92: "\\\\",
}  # fmt: skip
_SCRIPT_TEMPLATE = {**_SCRIPT_STRING, **{ord(c): f"\\u{ord(c):04x}" for c in "${}"}}
_SCRIPT_REGEXP = {
    **_SCRIPT_CONTROL, **{ord(c): f"\\u{ord(c):04x}" for c in "\"&'+<>"},
    **{ord(c): f"\\{c}" for c in "$()*-./?[\\]^{|}"},
}  # fmt: skip
_CSS = {code: f"\\{code:x}" for code in (0, 9, 10, 12, 13, *map(ord, "\"&'()+/:;<>{}"))}
_TAG = re2.compile(r"(?s)<!--.*?-->|</?[A-Za-z](?:[^>\"']|\"[^\"]*\"|'[^']*')*>")
"""RE2: Python's engine takes quadratic time on many tags that do not end."""
_CSS_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{1,6})(?:\r\n|[\t\n\f\r ])?|(.))", re.DOTALL)
_URL_KEPT = frozenset(b"-._~" + bytes(range(48, 58)) + bytes(range(65, 91)) + bytes(range(97, 123)))
_URL_RESERVED = frozenset(b"!#$&*+,/:;=?@[]")
_HEX = frozenset(b"0123456789abcdefABCDEF")


def _text(value: GoValue) -> str:
    if isinstance(value, str):
        return str(value)
    return "" if value is None else format_print([value])


def escape_html(value: GoValue) -> str:
    return str(value) if isinstance(value, SafeHtml) else _text(value).translate(_HTML)


def escape_rcdata(value: GoValue) -> str:
    return _text(value).translate(_HTML_NORMAL if isinstance(value, SafeHtml) else _HTML)


def escape_attribute(value: GoValue) -> str:
    if isinstance(value, SafeHtml):
        return strip_tags(value).translate(_HTML_NORMAL)
    return _text(value).translate(_HTML)


def escape_unquoted(value: GoValue) -> str:
    text = _text(value)
    if not text:
        return REFUSED
    if isinstance(value, SafeHtml):
        return strip_tags(text).translate(_UNQUOTED_NORMAL)
    return text.translate(_UNQUOTED)


def strip_tags(text: str) -> str:
    """HTML without its tags and comments, for an attribute."""
    return str(_TAG.sub("", text))


def filter_attribute_name(value: GoValue) -> str:
    text = _text(value).lower()
    is_word = bool(text) and text.isascii() and text.isalnum()
    return text if is_word and name_content(text) is Content.PLAIN else REFUSED


def _is_safe_url(text: str) -> bool:
    scheme, colon, _ = text.partition(":")
    return not colon or "/" in scheme or scheme.lower() in ("http", "https", "mailto")


def filter_url(value: GoValue) -> GoValue:
    if isinstance(value, SafeUrl) or _is_safe_url(_text(value)):
        return value if isinstance(value, SafeUrl) else _text(value)
    return f"#{REFUSED}"


def _percent(text: str, *, keep_reserved: bool) -> str:
    data, output = text.encode("utf-8", "replace"), []
    for at, byte in enumerate(data):
        is_escape = byte == 37 and len(data) > at + 2 and data[at + 1] in _HEX and data[at + 2] in _HEX
        kept = byte in _URL_KEPT or (keep_reserved and (byte in _URL_RESERVED or is_escape))
        output.append(chr(byte) if kept else f"%{byte:02x}")
    return "".join(output)


def normalize_url(value: GoValue) -> str:
    return _percent(_text(value), keep_reserved=True)


def escape_url(value: GoValue) -> str:
    return _percent(_text(value), keep_reserved=isinstance(value, SafeUrl))


def escape_srcset(value: GoValue) -> str:
    if isinstance(value, SafeUrl):
        return normalize_url(value).replace(",", "%2c")
    return ",".join(map(_srcset_candidate, _text(value).split(",")))


def _srcset_candidate(text: str) -> str:
    found = re.fullmatch(r"([\t\n\f\r ]*+)([^\t\n\f\r ]*+)([\t\n\f\r 0-9A-Za-z]*+)", text)
    if found is None or not _is_safe_url(found[2]):
        return f"#{REFUSED}"
    return found[1] + normalize_url(found[2]) + found[3]


def escape_script_value(value: GoValue) -> str:
    """A value as a JavaScript expression."""
    if isinstance(value, Stringer) and not isinstance(value, (GoStruct, GoTime)):
        value = value.go_string()  # a time has a JSON form of its own
    try:
        text = to_json(value)
    except FunctionFailed as failure:
        reason = re.sub("<(/?)script", r"\\x3C\1script", str(failure), flags=re.IGNORECASE)
        return f" /* {reason.replace('*/', '* /')} */null "
    needs_space = re.match(r"[$0-9A-Z_a-z]", text) or re.search(r"[$0-9A-Z_a-z]$", text)
    return f" {text} " if needs_space else text


def escape_script_literal(value: GoValue, state: HtmlState) -> str:
    tables: Mapping[HtmlState, dict[int, str]] = {
        HtmlState.SCRIPT_TEMPLATE: _SCRIPT_TEMPLATE,
        HtmlState.SCRIPT_REGEXP: _SCRIPT_REGEXP,
    }
    text = _text(value).translate(tables.get(state, _SCRIPT_STRING))
    return "(?:)" if not text and state is HtmlState.SCRIPT_REGEXP else text


def escape_css(value: GoValue) -> str:
    text, output = _text(value), []
    for at, character in enumerate(text):
        replacement = "\\\\" if character == "\\" else _CSS.get(ord(character))
        if replacement is None:
            output.append(character)
            continue
        follower = text[at + 1 : at + 2]
        runs_on = not follower or follower in "\t\n\f\r 0123456789abcdefABCDEF"
        output.append(replacement + (" " if runs_on and character != "\\" else ""))
    return "".join(output)


def _decode_css(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        if found[2] is not None:
            return found[2]
        code = int(found[1], 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"

    return _CSS_ESCAPE.sub(character, text)


def filter_css_value(value: GoValue) -> str:
    text = _decode_css(_text(value))
    letters = re.sub(r"[^A-Za-z0-9_-]", "", text).replace("-", "").lower()
    is_unsafe = re.search(r"[\x00\"'()/;@\[\\\]`{}<>]|--", text)
    return REFUSED if is_unsafe or "expression" in letters or "mozbinding" in letters else text
