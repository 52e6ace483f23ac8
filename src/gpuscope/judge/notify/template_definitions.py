"""The definitions that templates of users may call: the names of Alertmanager's defaults, as Go templates.

Where a receiver uses a default as it is, `default_messages` writes the message instead; these are for templates
that build upon a default.
"""

from __future__ import annotations

DEFINITIONS = """
{{ define "__alertmanager" }}gpuscope{{ end }}
{{ define "__alertmanagerURL" }}{{ .ExternalURL }}/#/alerts?receiver={{ .Receiver | urlquery }}{{ end }}
{{ define "__subject" -}}
[{{ .Status | toUpper }}{{ if eq .Status "firing" }}:{{ .Alerts.Firing | len }}{{ end }}]
{{- " " }}{{ .GroupLabels.SortedPairs.Values | join " " }} {{ if gt (len .CommonLabels) (len .GroupLabels) -}}
({{ (.CommonLabels.Remove .GroupLabels.Names).Values | join " " }}){{ end }}
{{- end }}
{{ define "__text_alert_list" }}{{ range . }}Labels:
{{ range .Labels.SortedPairs }} - {{ .Name }} = {{ .Value }}
{{ end }}Annotations:
{{ range .Annotations.SortedPairs }} - {{ .Name }} = {{ .Value }}
{{ end }}Source: {{ .GeneratorURL }}
{{ end }}{{ end }}
{{ define "__text_alert_list_markdown" }}{{ range . }}
Labels:
{{ range .Labels.SortedPairs }}  - {{ .Name }} = {{ .Value }}
{{ end }}
Annotations:
{{ range .Annotations.SortedPairs }}  - {{ .Name }} = {{ .Value }}
{{ end }}
Source: {{ .GeneratorURL }}
{{ end }}{{ end }}
{{ define "__both_lists" }}{{ with .Alerts.Firing }}Alerts Firing:
{{ template "__text_alert_list" . }}{{ end }}{{ with .Alerts.Resolved }}Alerts Resolved:
{{ template "__text_alert_list" . }}{{ end }}{{ end }}
{{ define "__both_lists_markdown" }}{{ with .Alerts.Firing }}# Alerts Firing:
{{ template "__text_alert_list_markdown" . }}{{ end }}{{ with .Alerts.Resolved }}# Alerts Resolved:
{{ template "__text_alert_list_markdown" . }}{{ end }}{{ end }}
{{ define "__state_color" }}{{ if eq .Status "firing" }}danger{{ else }}good{{ end }}{{ end }}
"""
_ALIASES = {
    "__subject": (
        "slack.default.title", "email.default.subject", "pagerduty.default.description",
        "discord.default.title", "msteamsv2.default.title",
    ),
    "__alertmanager": ("slack.default.username", "pagerduty.default.client"),
    "__alertmanagerURL": ("slack.default.titlelink", "pagerduty.default.clientURL"),
    "__state_color": ("slack.default.color",),
    "__text_alert_list": ("pagerduty.default.instances",),
    "__both_lists": (
        "slack.default.text", "telegram.default.message", "discord.default.message", "email.default.text",
        "email.default.html",
    ),
    "__both_lists_markdown": ("msteamsv2.default.text",),
}  # fmt: skip
_EMPTY = (
    "slack.default.callbackid", "slack.default.pretext", "slack.default.iconemoji", "slack.default.iconurl",
    "slack.default.footer", "discord.default.content", "__description",
)  # fmt: skip


def default_definitions() -> str:
    parts = [DEFINITIONS]
    for target, names in _ALIASES.items():
        parts += [f'{{{{ define "{name}" }}}}{{{{ template "{target}" . }}}}{{{{ end }}}}' for name in names]
    parts += [f'{{{{ define "{name}" }}}}{{{{ end }}}}' for name in _EMPTY]
    parts.append(
        '{{ define "slack.default.fallback" }}{{ template "__subject" . }} | '
        '{{ template "__alertmanagerURL" . }}{{ end }}'
    )
    return "\n".join(parts)
