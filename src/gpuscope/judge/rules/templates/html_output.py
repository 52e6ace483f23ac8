"""Writes a template's output as html/template does: each value is escaped for the place where it stands.

The place is followed while the template runs, over the literal text only. Go decides it before, and refuses
templates whose branches end in different places; here such a template runs, with the escaping of the branch
that it took. HTML comments of the template are left out, as Go leaves them out.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import unquote_plus

from gpuscope.judge.rules.templates.builtin_functions import html_escape, query_escape
from gpuscope.judge.rules.templates.html_context import (
    COMMENTS,
    SCRIPT_LITERALS,
    Context,
    Delimiter,
    HtmlState,
    UrlPart,
    before_value,
    context_after_text,
)
from gpuscope.judge.rules.templates.html_escapers import (
    escape_attribute,
    escape_css,
    escape_html,
    escape_rcdata,
    escape_script_literal,
    escape_script_value,
    escape_srcset,
    escape_unquoted,
    escape_url,
    filter_attribute_name,
    filter_css_value,
    filter_url,
    normalize_url,
)
from gpuscope.judge.rules.templates.template_nodes import ActionNode, IdentifierNode, TextNode
from gpuscope.judge.rules.templates.template_values import FunctionFailed, GoValue

_PREDEFINED = {"html", "urlquery"}
_SCRIPT_TAG = re.compile("<(script|/script|!--)", re.IGNORECASE)
_STYLE_STRINGS = (HtmlState.STYLE_DOUBLE_QUOTED, HtmlState.STYLE_SINGLE_QUOTED)
_URLS = (
    HtmlState.URL, *_STYLE_STRINGS, HtmlState.STYLE_DOUBLE_QUOTED_URL, HtmlState.STYLE_SINGLE_QUOTED_URL,
    HtmlState.STYLE_URL,
)  # fmt: skip
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
