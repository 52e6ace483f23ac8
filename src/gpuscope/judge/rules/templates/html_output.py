"""Writes a template's output as html/template does: each value is escaped for the place where it stands.

The place is followed while the template runs, over the literal text only. Go decides it before, and refuses
templates whose branches end in different places; here such a template runs, with the escaping of the branch
that it took. `SafeHtml` and `SafeUrl` values are what a template's author vouches for; a value that must not
stand in its place becomes `ZgotmplZ`, Go's word for it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import unquote_plus

import re2

from gpuscope.judge.rules.templates.builtin_functions import html_escape, query_escape
from gpuscope.judge.rules.templates.go_format import format_print
from gpuscope.judge.rules.templates.go_time import GoTime
from gpuscope.judge.rules.templates.html_context import (
    COMMENTS,
    SCRIPT_LITERALS,
    Content,
    Context,
    Delimiter,
    HtmlState,
    UrlPart,
    before_value,
    context_after_text,
    name_content,
)
from gpuscope.judge.rules.templates.template_nodes import ActionNode, IdentifierNode, TextNode
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoStruct,
    GoValue,
    SafeHtml,
    SafeUrl,
    Stringer,
)
from gpuscope.judge.rules.templates.text_functions import to_json

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
_PREDEFINED = {"html", "urlquery"}
_SCRIPT_TAG = re.compile("<(script|/script|!--)", re.IGNORECASE)
_STYLE_STRINGS = (HtmlState.STYLE_DOUBLE_QUOTED, HtmlState.STYLE_SINGLE_QUOTED)
_URLS = (
    HtmlState.URL, *_STYLE_STRINGS, HtmlState.STYLE_DOUBLE_QUOTED_URL, HtmlState.STYLE_SINGLE_QUOTED_URL,
    HtmlState.STYLE_URL,
)  # fmt: skip


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
    match = re.fullmatch(r"([\t\n\f\r ]*+)([^\t\n\f\r ]*+)([\t\n\f\r 0-9A-Za-z]*+)", text)
    if match is None or not _is_safe_url(match[2]):
        return f"#{REFUSED}"
    return match[1] + normalize_url(match[2]) + match[3]


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
    def character(match: re.Match[str]) -> str:
        if match[2] is not None:
            return match[2]
        code = int(match[1], 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"

    return _CSS_ESCAPE.sub(character, text)


def filter_css_value(value: GoValue) -> str:
    text = _decode_css(_text(value))
    letters = re.sub(r"[^A-Za-z0-9_-]", "", text).replace("-", "").lower()
    is_unsafe = re.search(r"[\x00\"'()/;@\[\\\]`{}<>]|--", text)
    return REFUSED if is_unsafe or "expression" in letters or "mozbinding" in letters else text


_ESCAPERS: dict[HtmlState, Callable[[GoValue], GoValue]] = {
    HtmlState.META_CONTENT_URL: filter_url,
    HtmlState.SCRIPT: escape_script_value,
    HtmlState.STYLE: filter_css_value,
    HtmlState.TEXT: escape_html,
    HtmlState.RCDATA: escape_rcdata,
    HtmlState.ATTRIBUTE_NAME: filter_attribute_name,
    HtmlState.SRCSET: escape_srcset,
}


class HtmlOutput:
    def __init__(self) -> None:
        self.context = Context()

    def finish(self) -> None:
        if self.context.state is not HtmlState.TEXT:
            raise FunctionFailed("ends in a non-text context")

    # literal text

    def render_text(self, node: TextNode) -> str:
        text, output, at = node.text, [], 0
        while at < len(text):
            after, read = context_after_text(self.context, text[at:])
            if read == 0 and after == self.context:
                raise FunctionFailed("the HTML of the template cannot be read")
            output.append(self._literal(text[at : at + read], after))
            self.context, at = after, at + read
        return "".join(output)

    def _literal(self, text: str, after: Context) -> str:
        """One part of the text, all in the present context but for what leads to the next."""
        state = self.context.state
        if state in COMMENTS and self.context.delimiter is Delimiter.NONE:
            # A line comment ends before its line break, which the next part has.
            if state in (HtmlState.SCRIPT_BLOCK_COMMENT, HtmlState.STYLE_BLOCK_COMMENT):
                return (
                    "\n"
                    if state is HtmlState.SCRIPT_BLOCK_COMMENT and re.search("[\n\r\u2028\u2029]", text)
                    else " "
                )
            return ""
        if state in (HtmlState.TEXT, HtmlState.RCDATA):
            text = self._escape_stray_less_than(text, after)
        if state in SCRIPT_LITERALS:
            text = _SCRIPT_TAG.sub(r"\\x3C\1", text)
        if after.state in COMMENTS and after.state is not state and after.delimiter is Delimiter.NONE:
            text = re.sub(r"(<!--|-->|#!|//|/\*)$", "", text)
        return text

    def _escape_stray_less_than(self, text: str, after: Context) -> str:
        end = text.rfind("<") if after.state is not self.context.state else len(text)
        end = len(text) if end < 0 else end
        head = re.sub("<(?!!DOCTYPE)", "&lt;", text[:end], flags=re.IGNORECASE)
        return head + text[end:]

    # values

    def write_value(self, node: ActionNode, value: GoValue) -> str:
        names = [
            command.arguments[0].name if isinstance(command.arguments[0], IdentifierNode) else ""
            for command in node.pipe.commands
        ]
        context = self.context = before_value(self.context)
        for name in names[:-1]:
            if name in _PREDEFINED:
                raise FunctionFailed(f'predefined escaper "{name}" disallowed in template')
        unquoted = context.state is HtmlState.ATTRIBUTE and context.delimiter is Delimiter.SPACE
        if unquoted and names[-1] == "html":
            raise FunctionFailed('predefined escaper "html" disallowed in template')
        done = names[-1] if names[-1] in _PREDEFINED else ""
        text = self._escape(context, value, done)
        if context.state is HtmlState.SCRIPT:
            self.context = replace(context, slash_divides=True)
        elif context.state is HtmlState.TAG:
            self.context = replace(context, state=HtmlState.ATTRIBUTE_NAME)
        return str(text)

    def _escape(self, context: Context, value: GoValue, done: str) -> GoValue:
        state, delimiter = context.state, context.delimiter
        if state in COMMENTS:
            return ""
        html_comes_last = done == "html" and delimiter in (Delimiter.DOUBLE_QUOTE, Delimiter.SINGLE_QUOTE)
        if html_comes_last:
            # Go moves the author's `| html` to where it would have put its own escaper: behind the others.
            value = html.unescape(str(value))
        is_last = state in SCRIPT_LITERALS or state in _STYLE_STRINGS
        if state in _URLS:
            escaped = self._escape_url(context, value, done)
        elif state in SCRIPT_LITERALS:
            escaped = escape_script_literal(value, state)
        elif state in (HtmlState.TEXT, HtmlState.RCDATA) and done == "html":
            escaped = value
        else:
            escape = _ESCAPERS.get(state)
            escaped = value if escape is None else escape(value)
        if html_comes_last:
            return html_escape(escaped)
        if delimiter is Delimiter.NONE or (is_last and delimiter is not Delimiter.SPACE):
            return escaped
        if delimiter is Delimiter.SPACE:
            return escape_unquoted(escaped)
        return escape_attribute(escaped)

    def _escape_url(self, context: Context, value: GoValue, done: str) -> GoValue:
        if context.url_part is UrlPart.QUERY_OR_FRAGMENT:
            return value if done == "urlquery" else escape_url(value)
        if context.url_part is UrlPart.NONE:
            if done == "urlquery" and context.state not in _STYLE_STRINGS:
                return query_escape(str(filter_url(unquote_plus(str(value)))))  # the filter comes first
            value = filter_url(value)
        if context.state in _STYLE_STRINGS:
            return escape_css(value)
        return value if done == "urlquery" else normalize_url(value)
