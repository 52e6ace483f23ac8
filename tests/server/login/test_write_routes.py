"""Every write of a real server names its role, comes from its own page, and is in the audit log.

The routes are those that `up` and `server` build, with and without another engine: a route added anywhere is in
them. Each is replaced by one that answers 200, so that only the access policy decides.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuscope.serve.app import build_app
from gpuscope.serve.http.messages import Request, Response, Route, text
from gpuscope.serve.login.access_rules import QUERY_POSTS, SAFE_METHODS, ClientRole
from tests.server.login.support import ANN, ORIGIN, Site

VIEWER, EDITOR, ADMIN = ClientRole.VIEWER, ClientRole.EDITOR, ClientRole.ADMIN
SENT_BY_PROGRAMS = {"POST /api/v1/write", "POST /api/v2/alerts", "POST /alertmanager/api/v2/alerts"}
"""Samples and alerts: nobody decides them, so they are not in the audit log."""
ROLES = {
    "POST /-/reload": ADMIN,
    "PUT /-/reload": ADMIN,
    **dict.fromkeys(SENT_BY_PROGRAMS, EDITOR),
    "POST /api/logout": VIEWER,
    "POST /api/v2/silences": EDITOR,
    "POST /alertmanager/api/v2/silences": EDITOR,
    "DELETE /api/v2/silence/{id}": EDITOR,
    "DELETE /alertmanager/api/v2/silence/{id}": EDITOR,
    "POST /api/notify/test": EDITOR,
    "POST /api/demo/load": EDITOR,
    "POST /api/users": ADMIN,
    "DELETE /api/users/{name}": ADMIN,
    "POST /api/users/{name}/role": ADMIN,
    "POST /api/tokens": ADMIN,
    "DELETE /api/tokens/{name}": ADMIN,
    **{
        f"{method} /api/v1/admin/tsdb/{name}": ADMIN
        for method in ("POST", "PUT")
        for name in ("snapshot", "delete_series", "clean_tombstones")
    },
}
COMMANDS = (
    ("up", "--demo", "--demo-nodes", "1", "--demo-gpus", "1", "--admin-api"),
    ("server", "--targets", "127.0.0.1:1", "--admin-api"),
    ("server", "--store", "http://127.0.0.1:1"),
)


PRINT_ROUTES = """
import os, sys
from gpuscope.cli import main
from gpuscope.cli.wiring import embedded_server, run_over_engine

def print_routes(routes, **more):
    # Routes that only answer 405, as Alertmanager does, change nothing.
    served = [route for route in routes if "refuse_method" not in getattr(route.handler, "__qualname__", "")]
    print(*(f"{method} {route.path}" for route in served for method in route.methods), sep="\\n", flush=True)
    os._exit(0)  # before it listens

embedded_server.build_app = run_over_engine.build_app = print_routes
sys.exit(main(sys.argv[1:]))
"""


@cache
def built_routes() -> frozenset[tuple[str, str]]:
    """Method and path of all routes of all commands, those of the login included."""
    lines: list[str] = []
    with TemporaryDirectory() as folder:
        for command in COMMANDS:
            data = () if "--store" in command else ("--data", f"{folder}/{command[0]}")
            arguments = [sys.executable, "-c", PRINT_ROUTES, *command, *data]
            done = subprocess.run(arguments, capture_output=True, text=True, check=True)
            lines += done.stdout.splitlines()
        access = Site(Path(folder) / "site").access
    own = (*access.login.routes(), *access.users.routes())
    lines += [f"{method} {route.path}" for route in own for method in route.methods]
    assert len(lines) > 100, lines
    return frozenset((method, path) for method, _, path in (line.partition(" ") for line in lines))


def is_write(method: str, path: str) -> bool:
    return method not in SAFE_METHODS and not QUERY_POSTS.fullmatch(path.replace("{name}", "x"))


def writes() -> list[str]:
    """Without the login itself, which is for those who have no role yet, and without paths that answer 404."""
    return sorted(
        f"{method} {path}"
        for method, path in built_routes()
        if is_write(method, path) and path != "/api/login" and "..." not in path and path != "/federate"
    )


async def _done(request: Request) -> Response:
    return text("done")


@pytest.fixture
def bare_site(site: Site) -> Site:
    """A login in front of routes that do nothing."""
    own = {route.path for route in (*site.access.login.routes(), *site.access.users.routes())}
    routes = [Route(path, _done, (method,)) for method, path in built_routes() if path not in own]
    site.app = build_app(routes, own_metrics=lambda: b"", access=site.access)
    return site


def test_each_write_names_its_role(bare_site: Site) -> None:
    """With `--store` reads may be posted, too; beside queries these are closed to all but admins."""
    posted_reads = set(writes()) - set(ROLES)
    assert set(ROLES) <= set(writes())
    bare_site.users.set_role(ANN, EDITOR)
    client = bare_site.logged_in()
    for write in posted_reads:
        method, path = write.split()
        is_read = method == "POST" and ("GET", path) in built_routes()
        assert is_read, f"{write}: a new write needs a row in ROLES"
        assert client.post(path, headers=ORIGIN).status_code == 403, write


@pytest.mark.parametrize("write", sorted(ROLES))
def test_a_lower_role_and_another_site_are_refused_and_the_change_is_audited(
    bare_site: Site, write: str
) -> None:
    method, path = write.split()
    path = re.sub(r"\{\w+\}", "x", path)
    required = ROLES[write]

    def status(role: ClientRole, headers: dict[str, str]) -> int:
        bare_site.users.set_role(ANN, role)
        client = bare_site.logged_in()
        return client.request(method, path, headers=headers, json={}).status_code

    before = len(audited(bare_site, write))
    for role in ClientRole:
        allowed = role.permits(required)
        assert (status(role, ORIGIN) != 403) == allowed, role
        assert status(role, {}) == 403, "no proof that the page sent it"
        assert status(role, {"origin": "http://evil.example"}) == 403
    lines = audited(bare_site, write)[before:]
    if write in SENT_BY_PROGRAMS:
        assert not lines
        return
    assert len(lines) == 3 * len(ClientRole)
    refused = [line["status"] == 403 for line in lines]
    assert refused == [
        is_refused for role in ClientRole for is_refused in (not role.permits(required), True, True)
    ]


def audited(site: Site, write: str) -> list[dict[str, object]]:
    method, path = write.split()
    action = f"{method} " + re.sub(r"\{\w+\}", "x", path)
    try:
        lines = (site.folder / "audit.log").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [entry for entry in map(json.loads, lines) if entry["action"] == action]
