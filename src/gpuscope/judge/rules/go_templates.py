"""The Go template engine of `rules.templates` as a `TemplateExpander` of rules."""

from __future__ import annotations

from gpuscope.base.limits import Limits
from gpuscope.judge.rules import templates
from gpuscope.judge.rules.interfaces import ParsedTemplate, RuleTemplateError, TemplateData, TemplateExpander


class _GoTemplate:
    def __init__(self, template: templates.Template) -> None:
        self._template = template

    def expand(self, data: TemplateData) -> str:
        values = templates.alert_data(data.labels, data.value, data.external_labels, data.external_url)
        try:
            functions = templates.prometheus_functions(data.query, data.at_seconds, data.external_url)
            return self._template.expand(values, functions)
        except templates.TemplateError as error:
            # Prometheus' own words, which end up in annotations.
            raise RuleTemplateError(f"error executing template {self._template.name}: {error}") from None


class GoTemplates:
    def __init__(self, limits: Limits) -> None:
        self._functions = templates.prometheus_functions()
        self._limits = limits

    def parse(self, text: str, name: str) -> ParsedTemplate:
        try:
            whole = templates.ALERT_PRELUDE + text
            return _GoTemplate(templates.parse(whole, name, self._functions, limits=self._limits))
        except templates.TemplateError as error:
            raise RuleTemplateError(str(error)) from None


def load_templates(limits: Limits | None = None) -> TemplateExpander:
    return GoTemplates(limits or Limits())
