"""Who may change what: roles of users, tokens, proxied users and users of a web config file."""

from __future__ import annotations

import json
from pathlib import Path

import bcrypt
import pytest

from gpuscope.serve.login.access import AccessPolicy
from gpuscope.serve.login.access_rules import ClientRole, HostRule
from gpuscope.serve.login.user_file import UserFile
from gpuscope.serve.web_config import load_web_config
from tests.server.client import Client
from tests.server.login.support import ANN, ORIGIN, PASSWORD, Site, app_with, log_in
from tests.server.login.test_access import basic, bearer

SILENCES = (
    ("POST", "/api/v2/silences"),
    ("POST", "/alertmanager/api/v2/silences"),
    ("DELETE", "/api/v2/silence/x"),
    ("POST", "/api/notify/test"),
)
SENDS = (("POST", "/api/v1/write"), ("POST", "/api/v2/alerts"))
ADMIN = (("POST", "/api/v1/admin/tsdb/snapshot"), ("PUT", "/api/v1/admin/tsdb/snapshot"))
READS = (
    ("GET", "/api/v2/silences"),
    ("GET", "/api/v2/silence/x"),
    ("GET", "/api/v2/alerts"),
    ("POST", "/api/v1/query"),
)


def statuses(client: Client, requests: tuple[tuple[str, str], ...], headers: dict[str, str]) -> set[int]:
    return {client.request(method, path, headers=headers).status_code for method, path in requests}


@pytest.mark.parametrize(
    ("role", "silences", "admin"),
    [(ClientRole.VIEWER, {403}, {403}), (ClientRole.EDITOR, {200}, {403}), (ClientRole.ADMIN, {200}, {200})],
)
def test_the_role_counts_however_a_user_proves_who_they_are(
    site: Site, role: ClientRole, silences: set[int], admin: set[int]
) -> None:
    site.users.set_role(ANN, role)
    logged_in = site.client()
    assert log_in(logged_in).status_code == 200
    token = site.users.add_token("t", role=role)
    for client, headers in ((logged_in, ORIGIN), (site.client(), basic()), (site.client(), bearer(token))):
        assert statuses(client, READS, headers) == {200}
        assert statuses(client, SILENCES, headers) == silences
        assert (statuses(client, SENDS, headers) <= {200, 204}) == (silences == {200})
        assert statuses(client, ADMIN, headers) == admin
        assert client.get("/api/session", headers=headers).json()["role"] == role
    refused = site.client().post("/api/v1/admin/tsdb/snapshot", headers=basic())
    if role is not ClientRole.ADMIN:
        assert refused.json()["error"] == f"this request requires the role admin; ann has the role {role}"


def test_a_new_role_counts_at_once_and_a_viewer_can_log_out(site: Site) -> None:
    client = site.logged_in()
    assert client.post("/api/v2/silences", headers=ORIGIN).status_code == 200
    UserFile(site.folder).set_role(ANN, ClientRole.VIEWER)
    assert client.post("/api/v2/silences", headers=ORIGIN).status_code == 403
    assert client.post("/api/logout", headers=ORIGIN).status_code == 200
    assert client.get("/api/session").status_code == 401


def test_another_site_cannot_silence_anything(site: Site) -> None:
    for headers in (
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert statuses(site.logged_in(), SILENCES, headers) == {403}, headers
    stored_by_the_browser = {**basic(), "origin": "http://evil.example"}
    assert statuses(site.client(), SILENCES, stored_by_the_browser) == {403}


def test_an_open_server_takes_silences_from_its_own_page_only() -> None:
    client = Client(app_with(AccessPolicy(HostRule.build("127.0.0.1", []))), "http://127.0.0.1:9470")
    assert statuses(client, SILENCES, {}) == {200}
    assert statuses(client, SILENCES, {"origin": "http://127.0.0.1:9470"}) == {200}
    assert statuses(client, SILENCES, {"origin": "http://evil.example"}) == {403}
    assert statuses(client, SILENCES, {"sec-fetch-site": "cross-site"}) == {403}


def test_a_proxied_user_has_the_default_role_or_their_own(tmp_path: Path) -> None:
    site = Site(tmp_path, proxies=["10.0.0.1"], proxy_header="X-Forwarded-User")
    site.users.add("bob", PASSWORD, role=ClientRole.EDITOR)
    client = site.client("10.0.0.1")
    for user, expected in (("unknown", {403}), ("bob", {200})):
        headers = {"x-forwarded-user": user, **ORIGIN}
        assert statuses(client, SILENCES, headers) == expected
        assert statuses(client, SILENCES, {"x-forwarded-user": user}) == {403}, "no proof of origin"


@pytest.mark.parametrize(("role", "silences"), [(ClientRole.VIEWER, {403}), (ClientRole.EDITOR, {200})])
def test_users_of_a_web_config_file_have_the_default_role(
    tmp_path: Path, role: ClientRole, silences: set[int]
) -> None:
    file = tmp_path / "web.yml"
    file.write_text(
        f"basic_auth_users:\n  ann: {bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n"
    )
    access = AccessPolicy(HostRule.build("", []), guard=load_web_config(file).guard, guard_role=role)
    client = Client(app_with(access), "http://10.0.0.9:9470")
    assert statuses(client, SILENCES, {}) == {401}
    assert statuses(client, READS, basic()) == {200}
    assert statuses(client, SILENCES, basic()) == silences
    assert statuses(client, SENDS, basic()) <= {200, 204}, "Prometheus sends with such a password"
    assert statuses(client, ADMIN, basic()) == {403}
    assert statuses(client, SILENCES, {**basic(), "origin": "http://evil.example"}) == {403}
    assert client.get("/api/session", headers=basic()).json() == {"open": True, "role": role}


def test_entries_from_before_there_were_roles(tmp_path: Path) -> None:
    users = UserFile(tmp_path, rounds=4)
    users.add(ANN, PASSWORD)
    secret = users.add_token("grafana")
    document = json.loads(users.path.read_text())
    for entry in (*document["users"].values(), *document["tokens"].values()):
        del entry["role"]
    users.path.write_text(json.dumps(document))
    assert UserFile(tmp_path).role_of(ANN) is ClientRole.ADMIN
    token = UserFile(tmp_path).token(secret)
    assert token is not None
    assert token.role is ClientRole.VIEWER


def test_an_unknown_role_in_the_file_is_refused(tmp_path: Path) -> None:
    users = UserFile(tmp_path, rounds=4)
    users.add(ANN, PASSWORD)
    users.path.write_text(users.path.read_text().replace('"admin"', '"root"'))
    with pytest.raises(Exception, match="unknown role"):
        UserFile(tmp_path).role_of(ANN)
