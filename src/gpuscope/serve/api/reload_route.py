"""`POST /-/reload`, which reads all files again, and `GET /api/reload`: which of them were refused, and why.

The first one answers as Prometheus and Alertmanager do, for the programs that watch configuration files. It is
always there, as in Alertmanager; with a login it requires an admin (`login/access_rules.py`). Prometheus'
`status/runtimeinfo` only says that a reload failed, and belongs to the engine behind `--store`.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from gpuscope.judge.notify.notifier import Notifier
from gpuscope.serve.api.responses import JSON
from gpuscope.serve.api_types.session_json import ReloadAnswer
from gpuscope.serve.http.messages import Request, Response, text
from gpuscope.serve.http.routing import Route
from gpuscope.serve.reload_status import ReloadStatus

RELOAD_PATH = "/api/reload"


def reload_answer(status: ReloadStatus, notifier: Notifier, started_at: float) -> ReloadAnswer:
    return {
        "rules": {"error": status.error, "loaded_at": started_at if status.at is None else status.at},
        "idle_policy": {
            "error": status.policy_error,
            "loaded_at": started_at if status.policy_at is None else status.policy_at,
        },
        "alerting": {"error": notifier.reload_error, "loaded_at": notifier.counters.reloaded_at},
    }


def reload_routes(
    status: ReloadStatus, notifier: Notifier, started_at: float, reload: Callable[[], None]
) -> list[Route]:
    """`reload` reads the files and leaves the result in `status` and `notifier`."""

    async def answer(request: Request) -> Response:
        return Response(orjson.dumps(reload_answer(status, notifier, started_at)), 200, JSON)

    async def run(request: Request) -> Response:
        reload()  # in the event loop, as after SIGHUP: two reloads never overlap
        problems = [part for part in (status.error, status.policy_error, notifier.reload_error) if part]
        return text(f"failed to reload config: {'; '.join(problems)}", 500) if problems else Response()

    return [Route(RELOAD_PATH, answer), Route("/-/reload", run, ("POST", "PUT"))]
