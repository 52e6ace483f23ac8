"""Alerts over a restart, so that `for`, `keep_firing_for` and `startsAt` survive it.

They are in a file, written as a whole after a change of state. Where it knows nothing of a group (the first
start over a history, or a lost file), `for` is restored from the series `ALERTS_FOR_STATE`, as Prometheus does.
For a pending alert the time without evaluation does not count.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.files import PRIVATE, write_atomically
from gpuscope.judge.rules.alert_state import ActiveAlert, AlertState
from gpuscope.judge.rules.evaluated_rules import AlertingRule, drop_metric_name
from gpuscope.judge.rules.rule_group import RuleGroup
from gpuscope.judge.rules.rule_io import SampleWriter
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.model.series import STALE_NAN_BITS, Labels

log = logging.getLogger("gpuscope")
VERSION = 1
MAX_STATE_BYTES = 1 << 30
FOR_GRACE_PERIOD_NS = 600 * SECOND_NS
OUTAGE_TOLERANCE_MS = 3_600_000


class RuleStateFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._episode = EpisodeLog(log, f"{path}: the state of alerts was not saved")

    def load(self) -> dict[str, Any]:
        """By group key; empty if there is no file or it cannot be used."""
        try:
            if self._path.stat().st_size > MAX_STATE_BYTES:
                raise ValueError("too large")
            document = orjson.loads(self._path.read_bytes())
            if document["version"] != VERSION:
                raise ValueError(f"version {document['version']!r}")
            return {group["key"]: group for group in document["groups"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s: the state of alerts cannot be read and is ignored: %s", self._path, error)
            return {}

    def save(self, groups: Iterable[RuleGroup]) -> None:
        """A failure is logged; evaluation goes on without a saved state."""
        document = {"version": VERSION, "groups": [_group_document(group) for group in groups]}
        try:
            write_atomically(self._path, orjson.dumps(document), mode=PRIVATE)
        except OSError as error:
            self._episode.failed(error.strerror or str(error))
        else:
            self._episode.succeeded()


def _group_document(group: RuleGroup) -> dict[str, Any]:
    return {
        "key": group.spec.key,
        "last_slot_ns": group.last_slot_ns,
        "rules": [
            {
                "name": rule.spec.name,
                "labels": rule.spec.labels,
                "alerts": [asdict(alert) for alert in rule.current_alerts()],
            }
            for rule in group.alerting_rules()
        ],
    }


def restore_group(group: RuleGroup, saved: dict[str, Any], first_slot_ns: int) -> bool:
    """Put saved alerts into the group's rules; False if the saved state is not usable."""
    try:
        last_slot = saved["last_slot_ns"]
        gap = 0 if last_slot is None else max(0, first_slot_ns - int(last_slot) - group.spec.interval_ns)
        waiting: dict[tuple[str, Labels], list[list[ActiveAlert]]] = {}
        for rule in saved["rules"]:
            key = (str(rule["name"]), _pairs(rule["labels"]))
            waiting.setdefault(key, []).append(list(_alerts(rule["alerts"], gap)))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        log.warning("the saved state of rule group %s is not usable: %r", group.spec.key, error)
        return False
    for current in group.alerting_rules():
        matches = waiting.get(current.spec.key)
        if matches:
            current.table.restore(iter(matches.pop(0)))
        current.is_restored = True
    return True


def _alerts(entries: list[dict[str, Any]], gap_ns: int) -> Iterator[ActiveAlert]:
    for entry in entries:
        alert = ActiveAlert(
            **{
                **entry,
                "labels": _pairs(entry["labels"]),
                "annotations": _pairs(entry["annotations"]),
                # JSON has no NaN and no infinity; the next evaluation replaces the value.
                "value": float("nan") if entry["value"] is None else float(entry["value"]),
                "state": AlertState(entry["state"]),
            }
        )
        if alert.state is AlertState.PENDING:
            alert.active_at_ns += gap_ns
        yield alert


def _pairs(pairs: list[list[str]]) -> Labels:
    return tuple((str(name), str(value)) for name, value in pairs)


def has_pending(groups: Iterable[RuleGroup]) -> bool:
    return any(rule.has_pending() for group in groups for rule in group.alerting_rules())


def restore_for_state(rule: AlertingRule, samples: SampleWriter, now_ns: int) -> None:
    """Move `active_at_ns` of the rule's alerts back to where it was before the restart."""
    if rule.spec.for_ns >= FOR_GRACE_PERIOD_NS:
        now_ms = now_ns // 1_000_000
        fixed = {
            **{name: value for name, value in rule.spec.labels if value and "{{" not in value},
            "__name__": "ALERTS_FOR_STATE",
            "alertname": rule.spec.name,
        }
        last_samples = samples.last_samples(tuple(sorted(fixed.items())), now_ms - OUTAGE_TOLERANCE_MS, now_ms)
        for labels, time_ms, value in last_samples:
            alert = rule.table.get(drop_metric_name(labels))
            if alert is not None and not _is_stale(value):
                _restore(alert, rule.spec.for_ns, time_ms, value, now_ns)
    rule.is_restored = True


def _is_stale(value: float) -> bool:
    return bool(struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_NAN_BITS)


def _restore(alert: ActiveAlert, for_ns: int, down_ms: int, active_seconds: float, now_ns: int) -> None:
    down_ns, active_ns = down_ms // 1000 * SECOND_NS, int(active_seconds) * SECOND_NS
    remaining = for_ns - (down_ns - active_ns)
    if remaining <= 0:
        alert.active_at_ns = active_ns
    elif remaining < FOR_GRACE_PERIOD_NS:
        alert.active_at_ns = now_ns + FOR_GRACE_PERIOD_NS - for_ns
    else:
        alert.active_at_ns = active_ns + now_ns - down_ns
