"""A `TemplateExpander` for texts without actions: the text is its own expansion, `{{` is refused."""

from __future__ import annotations

from gpuscope.rules.interfaces import ParsedTemplate, TemplateData, TemplateError


class _Constant:
    def __init__(self, text: str) -> None:
        self._text = text

    def expand(self, data: TemplateData) -> str:
        return self._text


class NoTemplates:
    def parse(self, text: str, name: str) -> ParsedTemplate:
        if "{{" in text:
            raise TemplateError(f"{name}: templates are not available here")
        return _Constant(text)
