"""Restores `for` after a restart from the series `ALERTS_FOR_STATE`, as Prometheus does.

Used where our own state file knows nothing of a group: the first start with a store that has a history, or a
lost file. Rules with a `for` below the grace period start anew.
"""

from __future__ import annotations

import struct

from gpuscope.judge.rules.alert_state import ActiveAlert
from gpuscope.judge.rules.alerting_rule import AlertingRule, drop_metric_name
from gpuscope.judge.rules.interfaces import SampleWriter
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.model.series import STALE_NAN_BITS

FOR_GRACE_PERIOD_NS = 600 * SECOND_NS
OUTAGE_TOLERANCE_MS = 3_600_000


def restore_for_state(rule: AlertingRule, samples: SampleWriter, now_ns: int) -> None:
    """Move `active_at_ns` of the rule's alerts back to where it was before the restart."""
    if rule.spec.for_ns >= FOR_GRACE_PERIOD_NS:
        now_ms = now_ns // 1_000_000
        fixed = {
            **{name: value for name, value in rule.spec.labels if value and "{{" not in value},
            "__name__": "ALERTS_FOR_STATE",
            "alertname": rule.spec.name,
        }
        found = samples.last_samples(tuple(sorted(fixed.items())), now_ms - OUTAGE_TOLERANCE_MS, now_ms)
        for labels, time_ms, value in found:
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
