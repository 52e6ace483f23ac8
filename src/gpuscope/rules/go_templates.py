"""The Go template engine of `rules.templates` as a `TemplateExpander` of rules."""

from __future__ import annotations

from gpuscope.rules import templates
from gpuscope.rules.interfaces import ParsedTemplate, RuleTemplateError, TemplateData, TemplateExpander


class _GoTemplate:
    def __init__(self, template: templates.Template) -> None:
        self._template = template

    def expand(self, data: TemplateData) -> str:
        values = templates.alert_data(data.labels, data.value, data.external_labels, data.external_url)
        try:
            functions = templates.prometheus_functions(data.query, data.at_seconds, data.external_url)
            return self._template.expand(values, functions)
        except templates.TemplateError as error:
            raise RuleTemplateError(str(error)) from None


class GoTemplates:
    def __init__(self) -> None:
        self._functions = templates.prometheus_functions()

    def parse(self, text: str, name: str) -> ParsedTemplate:
        try:
            return _GoTemplate(templates.parse(templates.ALERT_PRELUDE + text, name, self._functions))
        except templates.TemplateError as error:
            raise RuleTemplateError(str(error)) from None


def load_templates() -> TemplateExpander:
    return GoTemplates()
