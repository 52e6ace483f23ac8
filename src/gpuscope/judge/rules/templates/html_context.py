"""Where in an HTML text the next value stands: text, tag, attribute, URL, script or style.

`context_after_text` reads literal text of a template, never values. It follows the states of Go's
html/template; what it does not know (several states of JavaScript template literals) ends in an error, so that
nothing is written there unescaped.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, replace
from enum import Enum, auto

from gpuscope.judge.rules.templates.go_format import quote
from gpuscope.judge.rules.templates.template_values import FunctionFailed

_URLS = frozenset(
    {"action", "archive", "background", "cite", "classid", "codebase", "data", "formaction", "href", "icon",
     "longdesc", "manifest", "poster", "profile", "src", "usemap", "xmlns"}
)  # fmt: skip
_UNSAFE = frozenset(
    {"accept-charset", "async", "challenge", "charset", "content", "crossorigin", "defer", "enctype", "form",
     "formenctype", "formmethod", "formnovalidate", "http-equiv", "keytype", "language", "method", "novalidate",
     "pattern", "rel", "sandbox", "srcdoc", "type", "value"}
)  # fmt: skip
_PLAIN_LOOKALIKES = frozenset({"srclang"})
_SCRIPT_TYPES = frozenset(
    {"", "application/ecmascript", "application/javascript", "application/json", "application/ld+json",
     "application/x-ecmascript", "application/x-javascript", "module", "text/ecmascript", "text/javascript",
     "text/jscript", "text/livescript", "text/x-ecmascript", "text/x-javascript",
     *(f"text/javascript1.{minor}" for minor in range(6))}
)  # fmt: skip
_SPACES = " \t\n\f\r"
_REGEXP_BEFORE = frozenset(
    {"break", "case", "continue", "delete", "do", "else", "finally", "in", "instanceof", "return", "throw",
     "try", "typeof", "void"}
)  # fmt: skip


class Content(Enum):
    PLAIN = auto()
    URL = auto()
    SRCSET = auto()
    SCRIPT = auto()
    SCRIPT_TYPE = auto()
    STYLE = auto()
    META_CONTENT = auto()
    UNSAFE = auto()
    """Changes what other attributes mean: a template may not choose such a name."""


def name_content(name: str) -> Content:
    if name.startswith("data-"):
        name = name[5:]
    elif ":" in name:
        prefix, _, name = name.partition(":")
        if prefix == "xmlns":
            return Content.URL
    if name in _URLS:
        return Content.URL
    if name in _UNSAFE:
        return Content.UNSAFE
    if name in ("style", "srcset"):
        return Content.STYLE if name == "style" else Content.SRCSET
    if name.startswith("on"):
        return Content.SCRIPT
    looks_like_url = any(part in name for part in ("src", "uri", "url")) and name not in _PLAIN_LOOKALIKES
    return Content.URL if looks_like_url else Content.PLAIN


def attribute_content(name: str, element: str) -> Content:
    if element == "script" and name == "type":
        return Content.SCRIPT_TYPE
    if element == "meta" and name == "content":
        return Content.META_CONTENT
    content = name_content(name)
    return Content.PLAIN if content is Content.UNSAFE else content


def is_script_type(text: str) -> bool:
    return text.partition(";")[0].lower().strip() in _SCRIPT_TYPES


class HtmlState(Enum):
    TEXT = auto()
    TAG = auto()
    ATTRIBUTE_NAME = auto()
    AFTER_NAME = auto()
    BEFORE_VALUE = auto()
    COMMENT = auto()
    RCDATA = auto()
    """Inside of <title> or <textarea>: text without tags."""
    ATTRIBUTE = auto()
    URL = auto()
    SRCSET = auto()
    META_CONTENT = auto()
    META_CONTENT_URL = auto()
    SCRIPT = auto()
    SCRIPT_DOUBLE_QUOTED = auto()
    SCRIPT_SINGLE_QUOTED = auto()
    SCRIPT_TEMPLATE = auto()
    SCRIPT_REGEXP = auto()
    SCRIPT_BLOCK_COMMENT = auto()
    SCRIPT_LINE_COMMENT = auto()
    STYLE = auto()
    STYLE_DOUBLE_QUOTED = auto()
    STYLE_SINGLE_QUOTED = auto()
    STYLE_DOUBLE_QUOTED_URL = auto()
    STYLE_SINGLE_QUOTED_URL = auto()
    STYLE_URL = auto()
    STYLE_BLOCK_COMMENT = auto()
    STYLE_LINE_COMMENT = auto()


class Delimiter(Enum):
    """What ends an attribute's value."""

    NONE = ""
    DOUBLE_QUOTE = '"'
    SINGLE_QUOTE = "'"
    SPACE = " \t\n\f\r>"


class UrlPart(Enum):
    NONE = auto()
    BEFORE_QUERY = auto()
    QUERY_OR_FRAGMENT = auto()


COMMENTS = (
    HtmlState.COMMENT, HtmlState.SCRIPT_BLOCK_COMMENT, HtmlState.SCRIPT_LINE_COMMENT,
    HtmlState.STYLE_BLOCK_COMMENT,
    HtmlState.STYLE_LINE_COMMENT,
)  # fmt: skip
SCRIPT_LITERALS = (
    HtmlState.SCRIPT_DOUBLE_QUOTED, HtmlState.SCRIPT_SINGLE_QUOTED, HtmlState.SCRIPT_TEMPLATE,
    HtmlState.SCRIPT_REGEXP,
)  # fmt: skip
_START = {
    Content.PLAIN: HtmlState.ATTRIBUTE, Content.SCRIPT_TYPE: HtmlState.ATTRIBUTE,
    Content.SCRIPT: HtmlState.SCRIPT,
    Content.STYLE: HtmlState.STYLE, Content.URL: HtmlState.URL, Content.SRCSET: HtmlState.SRCSET,
    Content.META_CONTENT: HtmlState.META_CONTENT,
}  # fmt: skip
_ELEMENTS = {
    "script": HtmlState.SCRIPT, "style": HtmlState.STYLE, "textarea": HtmlState.RCDATA,
    "title": HtmlState.RCDATA,
    "meta": HtmlState.TEXT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Context:
    state: HtmlState = HtmlState.TEXT
    delimiter: Delimiter = Delimiter.NONE
    element: str = ""
    """A special element the text is in: script, style, textarea, title or meta."""
    attribute: Content = Content.PLAIN
    url_part: UrlPart = UrlPart.NONE
    slash_divides: bool = False
    """In a script: whether `/` is a division here, not the start of a regular expression."""


def before_value(context: Context) -> Context:
    """The context that a value changes by standing where an attribute's name or value is expected."""
    if context.state is HtmlState.TAG:
        return replace(context, state=HtmlState.ATTRIBUTE_NAME)
    if context.state is HtmlState.BEFORE_VALUE:
        state = _START[context.attribute]
        return replace(context, state=state, delimiter=Delimiter.SPACE, attribute=Content.PLAIN)
    if context.state is HtmlState.AFTER_NAME:
        return replace(context, state=HtmlState.ATTRIBUTE_NAME, attribute=Content.PLAIN)
    return context


def context_after_text(context: Context, text: str) -> tuple[Context, int]:
    """The context after the first part of a text, and the part's length."""
    if context.delimiter is Delimiter.NONE:
        end = _special_end(context, text)
        if end == 0:
            return Context(), 0
        return _step(context, text if end is None else text[:end])
    ends = [at for at in map(text.find, context.delimiter.value) if at >= 0]
    end = min(ends, default=len(text))
    if context.delimiter is Delimiter.SPACE:
        wrong = re.search("[\"'<=`]", text[:end])
        if wrong:
            raise FunctionFailed(f"{quote(wrong[0])} in unquoted attr: {quote(text[:end])}")
    if end == len(text):
        inner = html.unescape(text)
        while inner:
            context, read = _step(context, inner)
            inner = inner[read:]
        return context, len(text)
    element = context.element
    is_type = context.state is HtmlState.ATTRIBUTE and context.attribute is Content.SCRIPT_TYPE
    if is_type and element == "script" and not is_script_type(text[:end]):
        element = ""
    return Context(HtmlState.TAG, element=element), end + (context.delimiter is not Delimiter.SPACE)


def _special_end(context: Context, text: str) -> int | None:
    """Where the special element ends; None where it does not."""
    if not context.element:
        return None
    if context.element == "script" and context.state in (*SCRIPT_LITERALS, *COMMENTS):
        return None
    name = "" if context.element == "meta" else context.element
    match = re.search(rf"</{name}[> \t\n\f/]", text, re.IGNORECASE | re.ASCII)
    return match.start() if match else None


def _step(context: Context, text: str) -> tuple[Context, int]:
    state = context.state
    if state in _STEPS:
        return _STEPS[state](context, text)
    return context, len(text)


def _in_text(context: Context, text: str) -> tuple[Context, int]:
    for match in re.finditer(r"<!--|</?([A-Za-z][A-Za-z0-9]*(?:[:-][A-Za-z0-9]+)*)", text):
        if match[0] == "<!--":
            return Context(HtmlState.COMMENT), match.end()
        name = match[1].lower()
        element = name if name in _ELEMENTS and match[0][1] != "/" else ""
        return Context(HtmlState.TAG, element=element), match.end()
    return context, len(text)


def _skip_spaces(text: str, position: int = 0) -> int:
    while position < len(text) and text[position] in _SPACES:
        position += 1
    return position


def _attribute_name_end(text: str, position: int) -> int:
    for at in range(position, len(text)):
        if text[at] in _SPACES + "=>":
            return at
        if text[at] in "'\"<":
            raise FunctionFailed(f"{quote(text[at])} in attribute name: {quote(text[:32])}")
    return len(text)


def _in_tag(context: Context, text: str) -> tuple[Context, int]:
    begin = _skip_spaces(text)
    if begin == len(text):
        return context, len(text)
    element = context.element
    if text[begin] == ">":
        state = _ELEMENTS.get(element, HtmlState.TEXT)
        return Context(state, element="" if element == "meta" else element), begin + 1
    end = _attribute_name_end(text, begin)
    if end == begin:
        got = quote(text[begin:])
        raise FunctionFailed(f"expected space, attr name, or end of tag, but got {got}")
    attribute = attribute_content(text[begin:end].lower(), element)
    state = HtmlState.ATTRIBUTE_NAME if end == len(text) else HtmlState.AFTER_NAME
    return Context(state, element=element, attribute=attribute), end


def _in_attribute_name(context: Context, text: str) -> tuple[Context, int]:
    end = _attribute_name_end(text, 0)
    return (context if end == len(text) else replace(context, state=HtmlState.AFTER_NAME)), end


def _after_name(context: Context, text: str) -> tuple[Context, int]:
    begin = _skip_spaces(text)
    if begin == len(text):
        return context, begin
    if text[begin] != "=":
        return replace(context, state=HtmlState.TAG), begin
    return replace(context, state=HtmlState.BEFORE_VALUE), begin + 1


def _before_value(context: Context, text: str) -> tuple[Context, int]:
    begin = _skip_spaces(text)
    if begin == len(text):
        return context, begin
    quotes = {'"': Delimiter.DOUBLE_QUOTE, "'": Delimiter.SINGLE_QUOTE}
    delimiter = quotes.get(text[begin], Delimiter.SPACE)
    started = replace(context, state=_START[context.attribute], delimiter=delimiter)
    return started, begin + (delimiter is not Delimiter.SPACE)


def _in_comment(context: Context, text: str) -> tuple[Context, int]:
    end = text.find("-->")
    return (Context(), end + 3) if end >= 0 else (context, len(text))


def _in_url(context: Context, text: str) -> tuple[Context, int]:
    part = context.url_part
    if "#" in text or "?" in text:
        part = UrlPart.QUERY_OR_FRAGMENT
    elif text.strip(_SPACES) and part is UrlPart.NONE:
        part = UrlPart.BEFORE_QUERY
    return replace(context, url_part=part), len(text)


def _in_meta_content(context: Context, text: str) -> tuple[Context, int]:
    match = re.search(rf"url[{_SPACES}]*=", text, re.IGNORECASE)
    return (replace(context, state=HtmlState.META_CONTENT_URL), match.end()) if match else (context, len(text))


def _in_meta_content_url(context: Context, text: str) -> tuple[Context, int]:
    end = text.find(";")
    return (replace(context, state=HtmlState.META_CONTENT), end + 1) if end >= 0 else (context, len(text))


def slash_divides_after(text: str, before: bool) -> bool:
    """Whether a `/` after this piece of script divides."""
    text = text.rstrip("\t\n\f\r \u2028\u2029")
    if not text:
        return before
    last = text[-1]
    if last in "+-":
        run = len(text) - len(text.rstrip(last))
        return run % 2 == 0  # `x++` is a value, `x +` is not
    if last == ".":
        return len(text) > 1 and text[-2].isdigit()
    if last in ",<>=*%&|^?!~([:;{":
        return False
    if last == "}":
        return False
    word = re.search(r"[$0-9A-Z_a-z]*$", text)
    return not (word and word[0] in _REGEXP_BEFORE)


def _in_script(context: Context, text: str) -> tuple[Context, int]:
    match = re.search(r"[\"`'/]|<!--|-->|#!", text)
    if not match:
        return replace(context, slash_divides=slash_divides_after(text, context.slash_divides)), len(text)
    at, mark = match.start(), match[0]
    divides = slash_divides_after(text[:at], context.slash_divides)
    literals = {
        '"': HtmlState.SCRIPT_DOUBLE_QUOTED, "'": HtmlState.SCRIPT_SINGLE_QUOTED,
        "`": HtmlState.SCRIPT_TEMPLATE,
    }  # fmt: skip
    if mark in literals:
        return replace(context, state=literals[mark], slash_divides=False), at + 1
    if mark != "/":
        return replace(context, state=HtmlState.SCRIPT_LINE_COMMENT, slash_divides=divides), match.end()
    if text[at + 1 : at + 2] in ("/", "*"):
        comment = HtmlState.SCRIPT_LINE_COMMENT if text[at + 1] == "/" else HtmlState.SCRIPT_BLOCK_COMMENT
        return replace(context, state=comment, slash_divides=divides), at + 2
    if divides:
        return replace(context, slash_divides=False), at + 1
    return replace(context, state=HtmlState.SCRIPT_REGEXP, slash_divides=False), at + 1


def _in_script_literal(context: Context, text: str) -> tuple[Context, int]:
    ends = {
        HtmlState.SCRIPT_DOUBLE_QUOTED: '"',
        HtmlState.SCRIPT_SINGLE_QUOTED: "'",
        HtmlState.SCRIPT_TEMPLATE: "`",
    }
    end, at, in_set = ends.get(context.state, "/"), 0, False
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
            if at == len(text):
                raise FunctionFailed(f"unfinished escape sequence in JS string: {quote(text)}")
        elif context.state is HtmlState.SCRIPT_TEMPLATE and text.startswith("${", at):
            raise FunctionFailed("a placeholder in a JS template literal is not supported")
        elif context.state is HtmlState.SCRIPT_REGEXP and character in "[]":
            in_set = character == "["
        elif character == end and not in_set:
            return replace(context, state=HtmlState.SCRIPT, slash_divides=True), at + 1
        at += 1
    if in_set:
        raise FunctionFailed(f"unfinished JS regexp charset: {quote(text)}")
    return context, len(text)


def _in_block_comment(context: Context, text: str) -> tuple[Context, int]:
    end = text.find("*/")
    outer = HtmlState.SCRIPT if context.state is HtmlState.SCRIPT_BLOCK_COMMENT else HtmlState.STYLE
    return (replace(context, state=outer), end + 2) if end >= 0 else (context, len(text))


def _in_line_comment(context: Context, text: str) -> tuple[Context, int]:
    in_script = context.state is HtmlState.SCRIPT_LINE_COMMENT
    match = re.search("[\n\r\u2028\u2029]" if in_script else "[\n\f\r]", text)
    outer = HtmlState.SCRIPT if in_script else HtmlState.STYLE
    return (replace(context, state=outer), match.start()) if match else (context, len(text))


def _in_style(context: Context, text: str) -> tuple[Context, int]:
    match = re.search(r"(?<![\w-])url[\t\n\f\r ]*\([\t\n\f\r ]*([\"']?)|//|/\*|\"|'", text, re.IGNORECASE)
    if not match:
        return context, len(text)
    states = {
        "//": HtmlState.STYLE_LINE_COMMENT, "/*": HtmlState.STYLE_BLOCK_COMMENT,
        '"': HtmlState.STYLE_DOUBLE_QUOTED,
        "'": HtmlState.STYLE_SINGLE_QUOTED,
    }  # fmt: skip
    urls = {
        "": HtmlState.STYLE_URL,
        '"': HtmlState.STYLE_DOUBLE_QUOTED_URL,
        "'": HtmlState.STYLE_SINGLE_QUOTED_URL,
    }
    state = states.get(match[0]) or urls[match[1] or ""]
    return replace(context, state=state), match.end()


def _in_style_string(context: Context, text: str) -> tuple[Context, int]:
    if context.state is HtmlState.STYLE_URL:
        ends = "\t\n\f\r )"
    else:
        double = context.state in (HtmlState.STYLE_DOUBLE_QUOTED, HtmlState.STYLE_DOUBLE_QUOTED_URL)
        ends = '"' if double else "'"
    at = 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
            if at == len(text):
                raise FunctionFailed(f"unfinished escape sequence in CSS string: {quote(text)}")
        elif text[at] in ends:
            return replace(context, state=HtmlState.STYLE), at + 1
        at += 1
    return _in_url(context, text)


_STEPS = {
    HtmlState.TEXT: _in_text, HtmlState.TAG: _in_tag, HtmlState.ATTRIBUTE_NAME: _in_attribute_name,
    HtmlState.AFTER_NAME: _after_name, HtmlState.BEFORE_VALUE: _before_value, HtmlState.COMMENT: _in_comment,
    HtmlState.URL: _in_url, HtmlState.SRCSET: _in_url, HtmlState.META_CONTENT: _in_meta_content,
    HtmlState.META_CONTENT_URL: _in_meta_content_url, HtmlState.SCRIPT: _in_script,
    HtmlState.SCRIPT_BLOCK_COMMENT: _in_block_comment, HtmlState.STYLE_BLOCK_COMMENT: _in_block_comment,
    HtmlState.SCRIPT_LINE_COMMENT: _in_line_comment, HtmlState.STYLE_LINE_COMMENT: _in_line_comment,
    HtmlState.STYLE: _in_style, **dict.fromkeys(SCRIPT_LITERALS, _in_script_literal),
    HtmlState.STYLE_DOUBLE_QUOTED: _in_style_string, HtmlState.STYLE_SINGLE_QUOTED: _in_style_string,
    HtmlState.STYLE_DOUBLE_QUOTED_URL: _in_style_string, HtmlState.STYLE_SINGLE_QUOTED_URL: _in_style_string,
    HtmlState.STYLE_URL: _in_style_string,
}  # fmt: skip
