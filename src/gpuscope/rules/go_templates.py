"""The Go template engine of `rules.templates` as a `TemplateExpander`.

Imported by name: a build without that package takes rule files whose labels and annotations are constant.
"""

from __future__ import annotations

import importlib
from typing import Any

from gpuscope.rules.interfaces import ParsedTemplate, TemplateData, TemplateError, TemplateExpander
from gpuscope.rules.no_templates import NoTemplates


class _GoTemplate:
    def __init__(self, engine: Any, template: Any) -> None:
        self._engine = engine
        self._template = template

    def expand(self, data: TemplateData) -> str:
        engine = self._engine
        values = engine.alert_data(data.labels, data.value, data.external_labels, data.external_url)
        try:
            functions = engine.prometheus_functions(data.query, data.at_seconds, data.external_url)
            return str(self._template.expand(values, functions))
        except engine.TemplateError as error:
            raise TemplateError(str(error)) from None


class GoTemplates:
    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._functions = engine.prometheus_functions()

    def parse(self, text: str, name: str) -> ParsedTemplate:
        try:
            template = self._engine.parse(self._engine.ALERT_PRELUDE + text, name, self._functions)
        except self._engine.TemplateError as error:
            raise TemplateError(str(error)) from None
        return _GoTemplate(self._engine, template)


def load_templates() -> TemplateExpander:
    try:
        return GoTemplates(importlib.import_module("gpuscope.rules.templates"))
    except ModuleNotFoundError:
        return NoTemplates()
