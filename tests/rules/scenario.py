"""Twelve seconds of three GPUs, the rules over them, and what they give, second by second.

Values change at whole seconds, groups are evaluated between them: what an evaluation gives depends on its
second alone, not on the group's offset in it. So a picture recorded from a real Prometheus holds for any start.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuscope.base.time_text import parse_rfc3339
from gpuscope.model.series import STALE_NAN_BITS, Labels

GOLDEN = Path("rules/scenario.json")
RULES = """
groups:
- name: records
  interval: 1s
  labels: {team: gpu, tier: group}
  rules:
  - record: r:sum
    expr: sum by(job)(power{})
    labels: {tier: rule}
  - record: r:double
    expr: r:sum{ } * 2
  - record: r:scalar
    expr: 3 + 4
  - record: r:same
    expr: power
    labels: {gpu: all}
  - record: r:without
    expr: power
    labels: {job: "", tier: ""}
  - record: r:string
    expr: '"text"'
  - record: r:matrix
    expr: power[3s]
- name: alerts
  interval: 1s
  rules:
  - alert: AtOnce
    expr: power > 100
    labels: {severity: page, gone: ""}
    annotations: {summary: too much, empty: ""}
  - alert: After
    expr: power > 100
    for: 3s
  - alert: Kept
    expr: power > 100
    keep_firing_for: 4s
  - alert: Both
    expr: power > 100
    for: 2s
    keep_firing_for: 2s
  - alert: Twice
    expr: '{__name__=~"power|power2"} > 100'
  - alert: Chained
    expr: count(ALERTS{alertname="AtOnce",alertstate="firing"}) > 0
- name: offset
  interval: 1s
  query_offset: 2s
  rules:
  - alert: Late
    expr: power > 100
    for: 1s
  - record: r:late
    expr: sum(power)
- name: limited
  interval: 1s
  limit: 1
  rules:
  - alert: Limited
    expr: power > 100
  - record: r:limited
    expr: power
- name: templates
  interval: 1s
  rules:
  - alert: Templated
    expr: power > 100
    labels:
      severity: page
      level: '{{ if gt $value 120.0 }}high{{ else }}low{{ end }}'
      own: '{{ $labels.severity }}'
      gone: '{{ $labels.nope }}'
      board: 'GPU {{ $labels.gpu | printf "%02s" }} of {{ .Labels.job | toUpper }}'
    annotations:
      text: 'GPU {{ $labels.gpu }}: {{ $value | humanize }}W
        {{ printf "%.1f|%5.0f|%d|%s" $value $value $value "x" }}'
      name: '{{ $labels.__name__ }} {{ .Labels.gpu }} {{ .Value }} {{ $labels }}'
      outside: '{{ $externalLabels.cluster }} {{ externalURL }} {{ pathPrefix }} {{ $externalURL }}'
      link: '{{ graphLink "up == 0" }} {{ tableLink "a{b=\'\'c<d\'\'}" }}'
      asked: '{{ range query "power > 100" | sortByLabel "gpu" }}{{ .Labels.gpu }}={{ .Value }}
        {{ else }}none{{ end }}'
      first: '{{ with query "count(power)" }}{{ . | first | value }}{{ else }}nothing{{ end }}'
      failing: '{{ query "nothing" | first | value }}'
      wrong_types: 'before {{ gt $value 5 }} after'
      words: '{{ "<b>&" | html }} {{ urlquery "a b/c" }} {{ reReplaceAll "(o)w" "${1}W" "power" }}
        {{ title "gPU a-b" }}'
      numbers: '{{ 90 | humanizeDuration }} {{ "43200" | humanizeDuration }} {{ 0.1234 | humanizePercentage }}
        {{ 1234567 | humanize1024 }} {{ humanizeTimestamp 1800000000.5 }} {{ 1e7 }} {{ 0.00001 }} {{ 1000000 }}'
- name: late-templates
  interval: 1s
  query_offset: 2s
  rules:
  - alert: LateTemplated
    expr: power > 100
    annotations:
      now: '{{ range query "power" | sortByLabel "gpu" }}{{ .Labels.gpu }}={{ .Value }} {{ end }}'
      names: '{{ range query "power" | sortByLabel "gpu" }}{{ .Labels.__name__ }} {{ end }}'
- name: group-labels
  interval: 1s
  labels: {board: 'GPU {{ $labels.gpu }}', severity: group, broken: '{{ nofunc }}'}
  rules:
  - alert: GroupLabels
    expr: power > 100
    labels: {severity: '{{ $labels.severity }}rule'}
"""
# Watts, second by second; None ends the series with a stale marker.
WATTS: dict[str, list[float | None]] = {
    "0": [50, 150, 150, 150, 150, 150, 50, 50, 50, 50, 50, 50],
    "1": [50, 150, 50, 150, 50, 150, 150, None, None, 150, 50, 50],
    "2": [None, None, 150, 150, 150, 150, 150, 150, 150, 150, 50, 50],
}
SECONDS = 12
NAMES = '{__name__=~"ALERTS.*|r:.*"}'
STALE: float = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]
FIRING_SECONDS = 240
"""How far `endsAt` of a firing alert lies ahead."""

Picture = dict[str, Any]


def samples(start: int) -> Iterator[tuple[Labels, int, float]]:
    for gpu, values in WATTS.items():
        for metric in ("power", "power2") if gpu == "2" else ("power",):
            labels = (("__name__", metric), ("gpu", gpu), ("job", "agent"))
            for second, watts in enumerate(values):
                yield labels, (start + second) * 1000, STALE if watts is None else watts


def picture(
    query: Callable[[str, int], Iterable[tuple[Mapping[str, str], float]]],
    alerts: Iterable[Mapping[str, Any]],
    start: int,
) -> bytes:
    """The series at the end of each second, and the alerts sent, with times relative to the start.

    `alerts` are documents of POSTs. A second begins when all groups may see values of the one before."""
    seconds = [
        sorted(
            f"{_shown(labels)} {_relative(labels, value, start):g}"
            for labels, value in query(NAMES, start + k + 1)
            # The first evaluations of an offset group still see the time before the scenario.
            if _relative(labels, value, start) >= 0 and (k < SECONDS - 3 or not _is_late(labels))
        )
        for k in range(1, SECONDS - 1)
    ]
    sent = sorted(_sent(alert, start) for alert in alerts if is_of_scenario(alert, start))
    return json.dumps({"seconds": seconds, "alerts": sent}, indent=1).encode() + b"\n"


def _is_late(labels: Mapping[str, str]) -> bool:
    """Of a group with a query offset, whose samples for the last seconds are written after the end."""
    return labels.get("alertname") in ("Late", "LateTemplated") or labels["__name__"] == "r:late"


def _shown(labels: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _relative(labels: Mapping[str, str], value: float, start: int) -> float:
    return value - start if labels["__name__"] == "ALERTS_FOR_STATE" else value


def sent_in_second(alert: Mapping[str, Any], start: int) -> int:
    """The second of the evaluation that sent the alert."""
    ends = int(parse_rfc3339(alert["endsAt"]) // 1) - start
    return ends - FIRING_SECONDS if ends >= FIRING_SECONDS else ends


def is_of_scenario(alert: Mapping[str, Any], start: int) -> bool:
    """Not before it, and not in its last second, which may still run."""
    begun = parse_rfc3339(alert["startsAt"]) >= start
    return begun and sent_in_second(alert, start) < SECONDS - 1


def _sent(alert: Mapping[str, Any], start: int) -> str:
    starts = int(parse_rfc3339(alert["startsAt"]) // 1) - start
    ended = parse_rfc3339(alert["endsAt"]) < start + FIRING_SECONDS
    until = f"{'resolved' if ended else 'firing'} at {sent_in_second(alert, start)}"
    rest = f"{_shown(alert.get('annotations', {}))} | {alert['generatorURL']}"
    return f"{_shown(alert['labels'])} | from {starts}, {until} | {rest}"
