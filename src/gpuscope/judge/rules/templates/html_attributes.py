"""What HTML attributes contain: plain text, a URL, a script or a style. Unknown names are plain text."""

from __future__ import annotations

from enum import Enum, auto


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
