"""What a running server says about its alerts: files that the last reload refused, and channels that fail.

Input: a function that gets a path of the server as JSON; output: one result for each thing that is wrong, none
if all is well or if the server has no such route.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from gpuscope.base.blocking_http import BlockingHttp, HttpAddress
from gpuscope.base.time_text import to_rfc3339
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.serve.doctor.listener_checks import ANSWER_SECONDS, SERVER

MAX_BODY_BYTES: Final = 1 << 20
MAX_SHOWN_CHARACTERS: Final = 500
NOTIFY_PATH, RELOAD_PATH = "/api/notify", "/api/reload"
_FILES: Final = {
    "rules": "configuration and rule files",
    "alerting": "alerting file",
    "idle_policy": "idle policy",
}

GetJson = Callable[[str], object]


def check_alerts(get_json: GetJson) -> Iterator[CheckResult]:
    for name, status in _table(get_json(RELOAD_PATH)).items():
        if reason := str(_table(status).get("error", ""))[:MAX_SHOWN_CHARACTERS]:
            files = _FILES.get(name, name)
            what = f"the running server uses older {files}; the current ones were refused: {reason}"
            yield CheckResult(Verdict.BAD, what, "correct that line, then send SIGHUP to the server")
    channels = _table(get_json(NOTIFY_PATH)).get("channels", ())
    for channel in channels if isinstance(channels, list) else ():
        if _table(channel).get("up") is False:
            since = to_rfc3339(channel["failing_since"], "seconds")
            reason = str(channel["last_error"])[:MAX_SHOWN_CHARACTERS]
            what = f"channel {channel['channel']} has failed since {since}: {reason}"
            yield CheckResult(Verdict.BAD, what, "gpuscope notify test tries a channel")


def running_server(context: DoctorContext) -> Iterator[CheckResult]:
    """Checks the server on the loopback address, unless it requires a login there."""
    host, port = context.settings.listen or SERVER
    address = HttpAddress(host or "127.0.0.1", port)

    def get_json(path: str) -> object:
        try:
            with BlockingHttp(address, timeout_seconds=ANSWER_SECONDS, max_body_bytes=MAX_BODY_BYTES) as http:
                response = http.request("GET", path)
            return json.loads(response.body) if response.status == HTTPStatus.OK else None
        except (OSError, ValueError, RecursionError):
            return None  # no server, TLS, or another program

    return check_alerts(get_json)


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


CHECKS = (running_server,)
