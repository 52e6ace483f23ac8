"""Go's text/template and html/template, as Prometheus rules and Alertmanager notifications use them.

    template = parse(ALERT_PRELUDE + text, "__alert_" + name, prometheus_functions())
    template.expand(alert_data(labels, value, external_labels, url), prometheus_functions(query, now, url))

A text is parsed once, when its file is loaded; a mistake in it is a TemplateError with line and column.
"""

from gpuscope.judge.rules.templates.alertmanager_data import (
    AlertList,
    KeyValues,
    NotificationData,
    Pair,
    Pairs,
    TemplateAlert,
    alertmanager_functions,
)
from gpuscope.judge.rules.templates.go_time import GoTime
from gpuscope.judge.rules.templates.prometheus_functions import (
    ALERT_PRELUDE,
    AlertData,
    alert_data,
    prometheus_functions,
)
from gpuscope.judge.rules.templates.template import Template, parse
from gpuscope.judge.rules.templates.template_values import FunctionFailed, GoFunction, TemplateError

__all__ = [
    "ALERT_PRELUDE",
    "AlertData",
    "AlertList",
    "FunctionFailed",
    "GoFunction",
    "GoTime",
    "KeyValues",
    "NotificationData",
    "Pair",
    "Pairs",
    "Template",
    "TemplateAlert",
    "TemplateError",
    "alert_data",
    "alertmanager_functions",
    "parse",
    "prometheus_functions",
]
