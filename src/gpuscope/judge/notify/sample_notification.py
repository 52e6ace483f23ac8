"""A notification to try a channel with: an alert about a GPU, marked as a test."""

from __future__ import annotations

from gpuscope.judge.notify.notification import MessageAlert, Notification
from gpuscope.judge.notify.notification_log import Reason
from gpuscope.judge.notify.stored_alert import fingerprint, label_set_text


def sample_notification(receiver: str, external_url: str, now: float, *, is_resolved: bool) -> Notification:
    labels = {
        "alertname": "GpuscopeTest",
        "severity": "info",
        "node": "node-1",
        "gpu": "0",
        "model": "NVIDIA H100 80GB HBM3",
        "user": "alice",
        "job_id": "4711",
    }
    annotations = {
        "summary": "This is a test message of gpuscope.",
        "description": "Sent by `gpuscope notify test`. No GPU has a problem.",
        "next_step": "Nothing to do: this channel works.",
    }
    alert = MessageAlert(
        labels, annotations, now - 60, now if is_resolved else None, f"{external_url}/", fingerprint(labels)
    )
    group = {"alertname": labels["alertname"]}
    return Notification(
        receiver=receiver,
        group_key=f"{{}}:{label_set_text(group)}",
        group_labels=group,
        alerts=[alert],
        reason=(Reason.ALL_RESOLVED if is_resolved else Reason.FIRST).value,
        external_url=external_url,
        sent_at=now,
        route_labels={},
    )
