"""The doctor's checks of rule files, the alerting file, and what a running server says about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuscope.base.settings import load_settings
from gpuscope.serve.doctor import alert_files, server_alerts
from gpuscope.serve.http.messages import Request, Response, Route, Router
from tests.doctor.test_machine_checks import context, words
from tests.server.http.support import serving

GOOD = "route: {receiver: r}\nreceivers: [{name: r}]\n"
GOOD_RULES = "groups:\n- name: g\n  rules:\n  - {alert: A, expr: up == 0}\n"


def test_the_alerting_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    settings = load_settings({"alerting": str(path)}, {})
    path.write_text(GOOD)
    assert words(alert_files.alerting_file(context(tmp_path, settings=settings))).startswith("ok: ")
    path.write_text(GOOD.replace("route", "rote"))
    told = words(alert_files.alerting_file(context(tmp_path, settings=settings)))
    assert told.startswith("problem: the alerting file cannot be used")
    assert words(alert_files.alerting_file(context(tmp_path))) == ""


@pytest.mark.parametrize("flag", ["rules", "config"])
def test_rule_files_of_the_settings(flag: str, tmp_path: Path) -> None:
    rules, config = tmp_path / "r.yml", tmp_path / "prometheus.yml"
    config.write_text("rule_files: [r.yml]\n")
    settings = load_settings({flag: str(rules if flag == "rules" else config)}, {})

    def told() -> str:
        return words(alert_files.rule_files(context(tmp_path, settings=settings)))

    rules.write_text(GOOD_RULES)
    assert told().startswith("ok: 1 rule files are valid: 1 rules")
    rules.write_text(GOOD_RULES + "  - {alert: B, expr: 'sum('}\n  - {alert: C, fore: 1m, expr: up}\n")
    assert told().count("problem: the rule files cannot be used: ") == 2
    assert f"{rules}: 5:" in told()
    assert f"{rules}: 6:" in told()


def test_rule_files_that_are_not_there_or_not_set(tmp_path: Path) -> None:
    settings = load_settings({"rules": str(tmp_path / "none.yml")}, {})
    assert "no such file" in words(alert_files.rule_files(context(tmp_path, settings=settings)))
    assert words(alert_files.rule_files(context(tmp_path))) == ""


def test_what_a_running_server_says(tmp_path: Path) -> None:
    channels = [
        {"channel": "a/email[0]", "up": False, "last_error": "refused", "failing_since": 1_794_787_200.0},
        {"channel": "b/slack[0]", "up": True},
        {"channel": "c/slack[0]", "up": None},
    ]
    reload = {"rules": {"error": "r.yml: 5:9: no"}, "alerting": {"error": "a.yml: line 3"}}

    async def notify(request: Request) -> Response:
        return Response(json.dumps({"channels": channels}).encode(), 200, "application/json")

    async def reloaded(request: Request) -> Response:
        return Response(json.dumps(reload).encode(), 200, "application/json")

    with serving(Router([Route("/api/notify", notify), Route("/api/reload", reloaded)])) as port:
        settings = load_settings({"listen": f"127.0.0.1:{port}"}, {})
        told = words(server_alerts.running_server(context(tmp_path, settings=settings)))
    assert told.count("problem: ") == 3
    assert "older configuration and rule files; the current ones were refused: r.yml: 5:9: no" in told
    assert "older alerting file; the current ones were refused: a.yml: line 3" in told
    assert "a/email[0] has failed since 2026-11-16T00:00:00Z: refused" in told
    assert words(server_alerts.running_server(context(tmp_path, settings=settings))) == ""


@pytest.mark.parametrize("answer", [None, [], "x", {"rules": 7, "channels": {}}, {"channels": [None, 3]}])
def test_a_server_with_other_answers_is_no_problem(answer: object) -> None:
    assert list(server_alerts.check_alerts(lambda path: answer)) == []
