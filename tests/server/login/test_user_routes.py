"""Users, tokens and the audit log by the API: for admins, from our own page, and written down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.serve.login.access_rules import ClientRole
from gpuscope.serve.login.audit_log import AuditLog
from tests.server.client import Client
from tests.server.login.support import ANN, HOST, ORIGIN, PASSWORD, Site, basic

BOB, EVE = "bob", "eve"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.users.add(ANN, PASSWORD)
    site.users.add(BOB, PASSWORD, role=ClientRole.EDITOR)
    site.users.add(EVE, PASSWORD, role=ClientRole.VIEWER)
    return site


def logged_in(site: Site, user: str) -> Client:
    client = site.client()
    answer = client.post("/api/login", json={"user": user, "password": PASSWORD}, headers=ORIGIN)
    assert answer.status_code == 200
    return client


def test_users_and_tokens_are_the_admins(site: Site) -> None:
    for user in (BOB, EVE):
        client = logged_in(site, user)
        for path in ("/api/users", "/api/audit"):
            assert client.get(path).status_code == 403
        assert client.post("/api/users", json={}, headers=ORIGIN).status_code == 403
    client = logged_in(site, ANN)
    assert client.post("/api/users", json={}).status_code == 403  # no proof that our page sent it
    assert client.post("/api/users", json={}, headers={"origin": "http://evil.example"}).status_code == 403
    new: dict[str, Any] = {"name": "dora", "password": PASSWORD, "role": "viewer"}
    assert client.post("/api/users", json=new, headers=ORIGIN).json() == {"done": True}
    assert client.post("/api/users/dora/role", json={"role": "editor"}, headers=ORIGIN).json() == {"done": True}
    users = client.get("/api/users").json()["users"]
    assert {one["name"]: one["role"] for one in users} == {
        ANN: "admin", BOB: "editor", EVE: "viewer", "dora": "editor",
    }  # fmt: skip
    assert client.delete("/api/users/dora", headers=ORIGIN).json() == {"done": True}
    token = client.post("/api/tokens", json={"name": "node7", "permits": "write"}, headers=ORIGIN).json()[
        "token"
    ]
    bearer = {"authorization": f"Bearer {token}"}
    assert site.client().post("/api/v1/write", headers=bearer).status_code == 204
    assert client.get("/api/users").json()["tokens"][0]["permits"] == "write"
    bound = {"name": "node8", "permits": "write", "node": "node8"}
    assert "token" in client.post("/api/tokens", json=bound, headers=ORIGIN).json()
    assert [one["node"] for one in client.get("/api/users").json()["tokens"]] == ["", "node8"]
    assert (
        client.get("/api/audit").json()["entries"][0]["detail"] == "token node8, permits write for node node8"
    )
    assert client.delete("/api/tokens/node7", headers=ORIGIN).json() == {"done": True}
    assert site.client().post("/api/v1/write", headers=bearer).status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/users", {"name": "x", "password": PASSWORD, "role": "king"}, "role must be one of viewer"),
        ("/api/users", {"name": "x y", "password": PASSWORD, "role": "viewer"}, "not a valid name"),
        ("/api/users", {"name": "x", "password": "short", "role": "viewer"}, "password"),
        ("/api/users", {"password": PASSWORD, "role": "viewer"}, "name is required"),
        ("/api/users/nobody/role", {"role": "admin"}, "there is no user"),
        (f"/api/users/{ANN}/role", {"role": "viewer"}, "the last admin"),
        ("/api/tokens", {"name": "x"}, "permits must be one of"),
        ("/api/tokens", {"name": "x", "permits": "write", "node": "a b"}, "'a b' is not a node name"),
        ("/api/tokens", {"name": "x", "permits": "viewer", "node": "a"}, "only a token for remote write"),
        (
            "/api/tokens",
            {"name": "x", "permits": "everything"},
            "permits must be one of viewer, editor, admin, write",
        ),
    ],
)
def test_a_mistake_is_one_sentence(site: Site, path: str, body: dict[str, str], words: str) -> None:
    answer = logged_in(site, ANN).post(path, json=body, headers=ORIGIN)
    assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.json()


def test_changes_are_in_the_audit_log_refused_ones_too(site: Site) -> None:
    eve, ann = logged_in(site, EVE), logged_in(site, ANN)
    eve.post("/api/users", json={"name": "mallory"}, headers=ORIGIN)
    ann.post("/api/users", json={"name": "dora", "password": PASSWORD, "role": "editor"}, headers=ORIGIN)
    site.client().post("/api/login", json={"user": ANN, "password": "wrong"}, headers=ORIGIN)
    site.client().post("/api/v1/write", headers=basic(BOB))
    entries = ann.get("/api/audit").json()["entries"]
    told = [(one["user"], one["action"], one["status"], one["detail"]) for one in entries]
    assert told[:3] == [
        ("", "POST /api/login", 401, f"user {ANN}"),
        (ANN, "POST /api/users", 200, "user dora, role editor"),
        (EVE, "POST /api/users", 403, ""),
    ]
    assert PASSWORD not in (site.folder / "audit.log").read_text()
    assert not any("write" in action for _, action, _, _ in told)  # samples are no decision


def test_an_unknown_client_cannot_push_entries_out_of_the_audit_log(site: Site) -> None:
    ann = logged_in(site, ANN)
    ann.post("/api/users", json={"name": "dora", "password": PASSWORD, "role": "editor"}, headers=ORIGIN)
    before = (site.folder / "audit.log").stat().st_size
    with site.client() as stranger:
        for number in range(60):
            stranger.post(f"/api/v2/silences/{number}{'é' * 900}", headers=ORIGIN)
            stranger.post("/api/login", json={"user": "x" * 900, "password": "wrong"}, headers=ORIGIN)
    assert (site.folder / "audit.log").stat().st_size - before < 10_000
    entries = ann.get("/api/audit").json()["entries"]
    assert next(one["detail"] for one in entries if one["user"] == ANN) == "user dora, role editor"
    assert sum(one["user"] == "" and one["status"] >= 400 for one in entries) == 10


def test_a_stolen_write_token_cannot_push_entries_out_of_the_audit_log(site: Site) -> None:
    ann = logged_in(site, ANN)
    made = ann.post("/api/tokens", json={"name": "node7", "permits": "write"}, headers=ORIGIN).json()
    with site.client() as node:
        for _ in range(40):
            node.post("/api/v2/silences", headers={"authorization": f"Bearer {made['token']}"})
    entries = ann.get("/api/audit").json()["entries"]
    assert sum(one["user"] == "node7" and one["status"] == 403 for one in entries) == 10
    assert any(one["detail"].startswith("token node7") for one in entries)


def test_a_refused_change_names_the_token(site: Site) -> None:
    ann = logged_in(site, ANN)
    made = ann.post("/api/tokens", json={"name": "grafana", "permits": "viewer"}, headers=ORIGIN).json()
    bearer = {"authorization": f"Bearer {made['token']}"}
    assert site.client().post("/api/v2/silences", headers=bearer).status_code == 403
    cross_site = {"sec-fetch-site": "cross-site"}
    assert site.client().post("/api/v2/silences", headers=bearer | cross_site).status_code == 403
    entries = ann.get("/api/audit").json()["entries"]
    named = [(one["user"], one["via"], one["role"], one["status"]) for one in entries[:2]]
    assert named == [("grafana", "token", "viewer", 403)] * 2


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="mounts a small file system, which needs root"
)
def test_a_full_disk_spoils_no_line_of_the_audit_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=False
    ).returncode:
        pytest.skip("no permission to mount")
    try:
        log = AuditLog(tmp_path, 10 << 20)
        (tmp_path / "ballast").write_bytes(b"x" * (40 << 10))
        for number in range(200):
            log.append({"detail": f"{number} " + "x" * 400})
        (tmp_path / "ballast").unlink()
        log.append({"detail": "after"})
        kept = [json.loads(line)["detail"].split()[0] for line in log.path.read_text().splitlines()]
        assert kept == [*map(str, range(len(kept) - 1)), "after"]
        assert 1 < len(kept) < 200
        assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_audit_log_is_bounded_and_private(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, max_bytes=400, clock=lambda: 0.0)
    before = LIMITS_REACHED.counts()["audit_log_max_bytes"]
    for number in range(20):
        log.append({"user": ANN, "action": f"POST /{number}", "status": 200, "detail": "\ud800" + "x" * 9000})
    assert LIMITS_REACHED.counts()["audit_log_max_bytes"] > before
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3000
    assert oct(log.path.stat().st_mode & 0o777) == "0o600"
    assert log.newest(1)[0]["action"] == "POST /19"
    with log.path.open("ab") as file:
        file.write(b"{broken\n")
    assert log.newest(2)[0]["action"] == "POST /19"


def test_an_open_server_has_no_users_and_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path, with_login=False)
    answer = site.client().get("/api/users", headers={"host": HOST})
    assert (answer.status_code, "has no login" in answer.json()["error"]) == (404, True)
    assert site.client().get("/api/audit").json() == {"entries": []}
