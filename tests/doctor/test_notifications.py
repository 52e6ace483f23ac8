"""The doctor's checks of notifications."""

from __future__ import annotations

import json
from pathlib import Path

from gpuscope.doctor import notifications
from gpuscope.server.http.messages import Request, Response
from gpuscope.server.http.routing import Route, Router
from gpuscope.settings import load_settings
from tests.doctor.test_machine_checks import context, words
from tests.server.http.support import serving

GOOD = "route: {receiver: r}\nreceivers: [{name: r}]\n"


def test_the_alerting_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    settings = load_settings({"alerting": str(path)}, {})
    path.write_text(GOOD)
    assert words(notifications.alerting_file(context(tmp_path, settings=settings))).startswith("ok: ")
    path.write_text(GOOD.replace("route", "rote"))
    told = words(notifications.alerting_file(context(tmp_path, settings=settings)))
    assert told.startswith("problem: the alerting file cannot be used")
    assert words(notifications.alerting_file(context(tmp_path))) == ""


def test_the_channels_of_a_running_server(tmp_path: Path) -> None:
    channels = [
        {"channel": "a/email[0]", "up": False, "last_error": "refused", "failing_since": "2026-11-16"},
        {"channel": "b/slack[0]", "up": True},
        {"channel": "c/slack[0]", "up": None},
    ]
    body = json.dumps({"channels": channels, "reload_error": "a.yml: line 3"}).encode()

    async def answer(request: Request) -> Response:
        return Response(body, 200, "application/json")

    with serving(Router([Route("/api/notify", answer)])) as port:
        settings = load_settings({"listen": f"127.0.0.1:{port}"}, {})
        told = words(notifications.running_channels(context(tmp_path, settings=settings)))
    assert told.count("problem: ") == 2
    assert "a.yml: line 3" in told
    assert "a/email[0] fails since 2026-11-16: refused" in told
    assert words(notifications.running_channels(context(tmp_path, settings=settings))) == ""
