"""Templates and data for the comparison with Go: constructs of public rule files, every function, and traps.

corpus/*.txt has one template per line. Each runs through Prometheus' or Alertmanager's own code;
tests/golden/rules/templates.json keeps the results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LABELS = {
    "instance": "node1.example.org:9400", "job": "gpu", "gpu": "0", "severity": "", "uni": "gpu größe ñ",
    "html": "<script>alert('x')</script>", "braces": "{{ .Labels }}", "number": "12345.678", "__name__": "up",
    "upper": "gPU world-wide o'neil 3d",
}  # fmt: skip
QUERIES = {
    "up": [
        {"labels": {"__name__": "up", "instance": "b:1", "job": "x"}, "value": "1"},
        {"labels": {"__name__": "up", "instance": "a:1", "job": "x"}, "value": "0.5"},
        {"labels": {"instance": "c:1"}, "value": "NaN"},
    ],
    'up{instance="node1.example.org:9400"}': [{"labels": {"__value__": "v"}, "value": "2e7"}],
    "none": [],
}
VALUES = (
    "0", "1", "-1", "0.1", "2.5", "3.5", "999999", "1e6", "1234567.5", "2e7", "0.0001", "0.00001", "999.95",
    "1024", "1048576.5", "-1500", "1e21", "1e300", "1e-300", "5e-324", "NaN", "+Inf", "-Inf", "12.345", "59.99",
    "60", "899.99", "93784.5", "-183845", "1435065584.128", "123456789012", "0.12345", "-0",
)  # fmt: skip
FOR_EVERY_VALUE = (
    "{{ $value }}", "{{ $value | humanize }}", "{{ $value | humanize1024 }}", "{{ $value | humanizeDuration }}",
    "{{ $value | humanizePercentage }}", "{{ $value | humanizeTimestamp }}", '{{ printf "%.2f" $value }}',
    '{{ printf "%.0f|%8.3f|%-9.1f|%+.1e|%G|%08.2f|% .3g" $value $value $value $value $value $value $value }}',
    "{{ toTime $value }}", "{{ toDuration $value }}", "{{ if $value }}t{{ else }}f{{ end }}",
    '{{ printf "%d %s %v %q %x %t" $value $value $value $value $value $value }}',
    "{{ $value | printf `%5.1f` }}",
    "{{ gt $value 5.0 }}",
)  # fmt: skip
DATA: dict[str, Any] = {
    "receiver": "team\\.x", "status": "firing", "notification_reason": "first notification",
    "externalURL": "http://am.example:9093/p",
    "groupLabels": {"alertname": "GpuDown", "node": "n1"},
    "commonLabels": {
        "alertname": "GpuDown", "node": "n1", "job": "gpu", "html": "<i>a & \"b\" 'c' +d/e`{{x}}</i>",
        "url": "https://x.example/a b?q=<1>&r='2'", "js": "javascript:alert(1)", "empty": "",
    },
    "commonAnnotations": {"summary": "GPU <0> is down & out", "runbook": "https://r.example/#x"},
    "routeLabels": {"team": "ops"},
    "alerts": [
        {"status": "firing", "labels": {"alertname": "GpuDown", "node": "n1", "gpu": "0"},
         "annotations": {"summary": "s <0>"}, "startsAt": "2026-11-16T10:00:00.5Z",
         "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://p/graph?g0.expr=up+%3D%3D+0&g0.tab=1",
         "fingerprint": "00ab"},
        {"status": "resolved", "labels": {"alertname": "GpuDown", "node": "n1", "gpu": "1"}, "annotations": {},
         "startsAt": "2026-11-16T09:00:00Z", "endsAt": "2026-11-16T10:01:02.25Z", "generatorURL": "",
         "fingerprint": "00cd"},
    ],
}  # fmt: skip


def _prometheus(template: str, value: str = "1234567.5") -> dict[str, Any]:
    return {
        "engine": "prometheus", "template": template, "labels": LABELS, "value": value, "queries": QUERIES,
        "external_labels": {"cluster": "c1"}, "external_url": "http://prom.example:9090/base",
        "milliseconds": 1794806714503,
    }  # fmt: skip


def _lines(name: str) -> list[str]:
    return [line for line in (HERE / "corpus" / name).read_text().split("\n") if line]


MULTILINE = (
    "{{ if true }}\n\na{{ .Nope }}\n{{ end }}", "x\ny {{ $labels.gpu }}\n  {{- \" z\" }}\n{{ nofunc }}",
    "{{ range query \"up\" }}\n  {{ .Labels.instance }}\n{{ end }}", "{{ print\n\"a\"\n1 }}", "a\n{{ if }}\n",
    "{{/* a\n b */}}\n{{ $labels.gpu }}", "{{ \"a\nb\" }}", "{{ `a\nb` }}", "{{ if true\n}}x{{ end\n}}",
    "ü {{ .Nope }}",
)  # fmt: skip


def corpus() -> list[dict[str, Any]]:
    cases = [_prometheus(line) for line in (*_lines("prometheus.txt"), *MULTILINE)]
    cases += [_prometheus(text, value) for value in VALUES for text in FOR_EVERY_VALUE]
    cases += [{"engine": "text", "template": line, "data": DATA} for line in _lines("text.txt")]
    cases += [{"engine": "html", "template": line, "data": DATA} for line in _lines("html.txt")]
    return cases
