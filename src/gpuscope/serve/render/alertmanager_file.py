"""alertmanager.yml: routes by severity, inhibition, and receivers whose secrets stay in files.

Without a receiver, alerts are grouped and shown in Alertmanager's own page, but not sent anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpuscope.serve.render import RenderedFile, read_shipped

HEADER: Final = "# Written by `gpuscope render alertmanager`.\n"
NO_RECEIVER: Final = (
    "# No receiver is configured: alerts are shown on Alertmanager's page and sent nowhere. Render again with\n"
    "# --webhook-url-file, --slack-url-file or --email to send them.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerPlan:
    webhook_url_file: str = ""
    slack_url_file: str = ""
    slack_channel: str = ""
    email: str = ""
    smtp_host: str = ""
    smtp_from: str = ""
    smtp_user: str = ""
    smtp_password_file: str = ""


def alertmanager_file(plan: AlertmanagerPlan) -> RenderedFile:
    # Its routes and inhibition rules belong to the shipped rule files.
    document = yaml.safe_load(read_shipped("prometheus/alertmanager.yml"))
    if plan.email:
        document["global"] = {**document.get("global", {}), **_smtp(plan)}
    settings = _receiver_settings(plan)
    for receiver in document["receivers"]:
        if receiver["name"] == document["route"]["receiver"]:
            receiver.update(settings)
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return RenderedFile("alertmanager.yml", HEADER + ("" if settings else NO_RECEIVER) + text)


def _receiver_settings(plan: AlertmanagerPlan) -> dict[str, Any]:
    receiver: dict[str, Any] = {}
    if plan.webhook_url_file:
        receiver["webhook_configs"] = [{"url_file": plan.webhook_url_file, "send_resolved": True}]
    if plan.slack_url_file:
        slack: dict[str, Any] = {"api_url_file": plan.slack_url_file, "send_resolved": True}
        if plan.slack_channel:
            slack["channel"] = plan.slack_channel
        receiver["slack_configs"] = [slack]
    if plan.email:
        receiver["email_configs"] = [{"to": plan.email, "send_resolved": True}]
    return receiver


def _smtp(plan: AlertmanagerPlan) -> dict[str, Any]:
    smtp: dict[str, Any] = {
        "smtp_smarthost": plan.smtp_host,
        "smtp_from": plan.smtp_from or plan.email,
    }
    if plan.smtp_user:
        smtp["smtp_auth_username"] = plan.smtp_user
    if plan.smtp_password_file:
        smtp["smtp_auth_password_file"] = plan.smtp_password_file
    return smtp
