"""Checks of notifications: whether the alerting file can be used, and which channels of a running server fail.

The running server is asked on the loopback address; one that requires a login there is not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from gpuscope.blocking_http import BlockingHttp, HttpAddress
from gpuscope.doctor import CheckResult, DoctorContext, Verdict
from gpuscope.doctor.listener_checks import ANSWER_SECONDS, SERVER
from gpuscope.errors import UsageError
from gpuscope.settings import home_path

MAX_BODY_BYTES = 1 << 20
MAX_SHOWN_CHARACTERS = 500


def alerting_file(context: DoctorContext) -> Iterator[CheckResult]:
    """Returns a result only if a file is set."""
    from gpuscope.notify.alerting_config import load_alerting

    if not context.settings.alerting:
        return
    path = home_path(context.settings.alerting, "alerting")
    try:
        config = load_alerting(path)
    except UsageError as error:
        yield CheckResult(Verdict.BAD, f"the alerting file cannot be used: {error}", "correct that line")
    else:
        yield CheckResult(Verdict.GOOD, f"{path} is valid: {len(config.receivers)} receivers")


def running_channels(context: DoctorContext) -> Iterator[CheckResult]:
    """Returns a result only for what fails."""
    status = _notify_status(context.settings.listen or SERVER)
    if reason := str(status.get("reload_error", ""))[:MAX_SHOWN_CHARACTERS]:
        what = f"the running server uses an older alerting file; the current one was refused: {reason}"
        yield CheckResult(Verdict.BAD, what, "correct the file, then send SIGHUP to the server")
    for channel in status.get("channels", ()):
        if channel["up"] is False:
            reason = str(channel["last_error"])[:MAX_SHOWN_CHARACTERS]
            what = f"channel {channel['channel']} fails since {channel['failing_since']}: {reason}"
            yield CheckResult(Verdict.BAD, what, "gpuscope notify test tries a channel")


def _notify_status(listen: tuple[str, int]) -> dict[str, Any]:
    address = HttpAddress(listen[0] or "127.0.0.1", listen[1])
    try:
        with BlockingHttp(address, timeout_seconds=ANSWER_SECONDS, max_body_bytes=MAX_BODY_BYTES) as http:
            response = http.request("GET", "/api/notify")
        document = json.loads(response.body) if response.status == HTTPStatus.OK else None
    except (OSError, ValueError):
        return {}  # no server, TLS, or another program
    return document if isinstance(document, dict) else {}


CHECKS = (alerting_file, running_channels)
