"""`GET /api/reload`: which files were refused by the last reload, and why.

Prometheus' `status/runtimeinfo` only says that a reload failed, and belongs to the engine behind `--store`.
"""

from __future__ import annotations

import orjson

from gpuscope.notify.notifier import Notifier
from gpuscope.server.api.responses import JSON
from gpuscope.server.api_types.reload_json import ReloadAnswer
from gpuscope.server.http.messages import Request, Response
from gpuscope.server.http.routing import Route
from gpuscope.server.reload_status import ReloadStatus

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


def reload_route(status: ReloadStatus, notifier: Notifier, started_at: float) -> Route:
    async def answer(request: Request) -> Response:
        return Response(orjson.dumps(reload_answer(status, notifier, started_at)), 200, JSON)

    return Route(RELOAD_PATH, answer)
