"""Login and logout over HTTP: the first user, sessions, rate limits, malformed requests."""

from __future__ import annotations

import os
from http.cookies import SimpleCookie
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.serve.login.authenticator import COOKIE, SECURE_COOKIE
from gpuscope.serve.login.user_file import UserFile
from tests.examples import examples
from tests.server.login.support import ANN, CHEAP_ROUNDS, LIFETIME, ORIGIN, PASSWORD, Site, log_in

PROTECTED = (
    "/api/v1/query",
    "/api/live",
    "/api/session",
    "/metrics",
    "/federate",
    "/api/v1/nothing",
    "/nothing",
)


@pytest.mark.parametrize("path", PROTECTED)
def test_without_a_login_every_path_is_401(site: Site, path: str) -> None:
    response = site.client().get(path)
    assert response.status_code == 401
    body = response.json()
    assert body.pop("error")
    assert body == {"status": "error", "errorType": "unauthorized", "login": True, "setup": False}
    assert response.headers["www-authenticate"].startswith("Bearer"), "no dialog of the browser's own"
    assert "access-control-allow-origin" not in response.headers
    assert "default-src 'self'" in response.headers["content-security-policy"]


def test_health_checks_and_page_files_need_no_login(site: Site) -> None:
    client = site.client()
    for path in ("/-/healthy", "/-/ready", "/"):
        assert client.get(path).status_code == 200
        assert client.head(path).status_code == 200
    assert client.get("/-/healthy", headers={"host": "evil.example"}).status_code == 200
    assert client.post("/").status_code == 401


def test_what_an_alert_means_needs_no_login(site: Site) -> None:
    """A message is read where nobody is logged in; the page has no data of the fleet."""
    client = site.client()
    assert client.get("/explain/alert/HeldIdle").status_code == 200
    assert client.get("/explain/alert/Nothing").status_code == 404
    assert client.get("/explain/alert/%2e%2e/%2e%2e/api/live").status_code == 401
    assert client.post("/explain/alert/HeldIdle").status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/../users.json", "/%2e%2e/app.py", "//etc/passwd", "/%00", "/" + "x" * 5000, "/assets/../../app.py",
        "/-/healthy/",
    ],
)  # fmt: skip
def test_path_tricks_do_not_reach_page_files(site: Site, path: str) -> None:
    assert site.client().get(path).status_code == 401
    assert site.logged_in().get(path).status_code in (307, 404)


def test_login_and_logout(site: Site) -> None:
    client = site.client()
    response = log_in(client)
    assert response.status_code == 200
    assert response.json() == {"user": ANN}
    assert client.get("/api/session").json() == {"user": ANN, "via": "session", "role": "admin"}
    for path in ("/api/v1/query", "/api/live", "/metrics", "/federate"):
        assert client.get(path).status_code == 200
        assert client.get(path).headers["cache-control"] == "no-store"
    session_id = client.cookies[COOKIE]
    assert client.post("/api/logout", headers=ORIGIN).status_code == 200
    assert COOKIE not in client.cookies
    stolen = site.client()
    stolen.cookies.set(COOKIE, session_id)
    assert stolen.get("/api/session").status_code == 401, "it ended on the server, not only in the browser"


@pytest.mark.parametrize(("scheme", "name"), [("http", COOKIE), ("https", SECURE_COOKIE)])
def test_cookie_attributes(site: Site, scheme: str, name: str) -> None:
    response = log_in(site.client(scheme=scheme))
    cookie = SimpleCookie(response.headers["set-cookie"])[name]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    assert cookie["path"] == "/"
    assert cookie["max-age"] == str(int(LIFETIME))
    assert bool(cookie["secure"]) == (scheme == "https")
    assert len(cookie.value) == 43
    assert cookie.value not in (site.folder / "sessions.json").read_text()
    assert (site.folder / "sessions.json").stat().st_mode & 0o777 == 0o600


def test_a_session_ends_on_expiry_password_change_or_user_removal(site: Site) -> None:
    client = site.logged_in()
    site.clock.now += LIFETIME - 1
    assert client.get("/metrics").status_code == 200
    site.clock.now += 1
    assert client.get("/metrics").status_code == 401

    client = site.logged_in()
    elsewhere = UserFile(site.folder, rounds=CHEAP_ROUNDS)  # the `user` command, while the server runs
    elsewhere.set_password(ANN, "another, longer one")
    assert client.get("/metrics").status_code == 401
    assert log_in(client).status_code == 401
    assert log_in(client, password="another, longer one").status_code == 200
    elsewhere.remove(ANN)
    assert client.get("/metrics").status_code == 401


def test_sessions_survive_a_restart_and_are_limited(site: Site) -> None:
    session_id = site.logged_in().cookies[COOKIE]
    again = Site(site.folder).client()
    again.cookies.set(COOKIE, session_id)
    assert again.get("/api/session").json()["user"] == ANN
    ids = [site.sessions.open_for(ANN) for _ in range(60)]
    assert site.sessions.user_of(ids[-1]) == site.sessions.user_of(ids[-50]) == ANN
    assert site.sessions.user_of(ids[0]) is None


def test_a_login_replaces_an_existing_session(site: Site) -> None:
    client = site.logged_in()
    planted = client.cookies[COOKIE]
    log_in(client)
    assert client.cookies[COOKIE] != planted
    assert site.sessions.user_of(planted) is None


def test_the_setup_token_creates_the_first_user(empty_site: Site) -> None:
    token = empty_site.setup.new_token()
    client = empty_site.client()
    assert client.get("/api/session").json()["setup"] is True
    assert log_in(client, token=token, password="short").status_code == 400
    wrong = log_in(client, token="x" * 43)
    assert wrong.status_code == 401
    response = log_in(client, token=token)
    assert response.json() == {"user": ANN}
    assert client.get("/api/session").json()["user"] == ANN
    again = log_in(empty_site.client(), user="eve", token=token)
    assert again.status_code == 401
    assert again.json()["error"] == wrong.json()["error"]
    assert again.json()["setup"] is False
    assert set(empty_site.users.names()) == {ANN}


def test_a_user_created_by_command_invalidates_the_setup_token(empty_site: Site) -> None:
    token = empty_site.setup.new_token()
    UserFile(empty_site.folder, rounds=CHEAP_ROUNDS).add("bob", PASSWORD)
    assert log_in(empty_site.client(), token=token).status_code == 401
    UserFile(empty_site.folder).remove("bob")
    assert log_in(empty_site.client(), token="").status_code == 401


def test_the_first_user_needs_the_setup_token(empty_site: Site) -> None:
    assert log_in(empty_site.client(), token="").status_code == 401
    assert log_in(empty_site.client(), token="anything").status_code == 401
    assert empty_site.client().get("/api/session").json()["setup"] is False


def test_setup_tokens_are_rate_limited(empty_site: Site) -> None:
    token = empty_site.setup.new_token()
    statuses = [log_in(empty_site.client(), token="guess").status_code for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    assert log_in(empty_site.client(), token=token).status_code == 429
    assert log_in(empty_site.client("10.9.9.9"), token=token).status_code == 200


def test_refusals_do_not_reveal_which_users_exist(site: Site) -> None:
    known, unknown = (
        log_in(site.client(f"10.0.0.{n}"), user, "wrong password") for n, user in ((1, ANN), (2, "eve"))
    )
    assert known.status_code == unknown.status_code == 401
    assert known.content == unknown.content
    assert set(known.headers) == set(unknown.headers)
    for number in range(12):
        a = log_in(site.client(f"10.1.{number}.1"), ANN, "wrong password")
        b = log_in(site.client(f"10.2.{number}.1"), "eve", "wrong password")
        assert (a.status_code, a.content) == (b.status_code, b.content)


def test_the_wait_applies_to_one_address(site: Site) -> None:
    client = site.client()
    for _ in range(5):
        assert log_in(client, "eve", "wrong password").status_code == 401
    refused = log_in(client)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert "try again in" in refused.json()["error"]
    assert log_in(site.client("10.0.0.6")).status_code == 200
    site.clock.now += 1
    assert log_in(client).status_code == 200
    assert log_in(client, "eve", "wrong password").status_code == 401, "a success wiped the slate"


def test_attempts_from_many_addresses_lock_a_user_for_a_minute_at_most(site: Site) -> None:
    there = site.logged_in()
    for number in range(30):
        log_in(site.client(f"10.7.{number}.1"), ANN, "wrong password")
        site.clock.now += site.by_user.wait(next(iter(site.by_user)))
    log_in(site.client("10.8.0.1"), ANN, "wrong password")
    assert log_in(site.client("10.8.0.2"), ANN, "wrong password").status_code == 429
    assert there.get("/metrics").status_code == 200, "who is in stays in"
    site.clock.now += 60
    assert log_in(site.client("10.8.0.3")).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"null", "application/json", 400),
        (b'{"user": "ann"}', "application/json", 400),
        (b'{"user": ["ann"], "password": "x"}', "application/json", 400),
        (b'{"user": "ann", "password": {"$ne": ""}}', "application/json", 400),
        (b'{"user": "ann", "password": null}', "application/json", 400),
        (b"[" * 16000, "application/json", 400),
        (b'{"user": "' + b"a" * 20000 + b'"}', "application/json", 413),
        (b"user=ann&password=correct+horse+battery", "application/x-www-form-urlencoded", 415),
        (b'{"user": "ann", "password": "correct horse battery"}', "text/plain", 415),
    ],
)
def test_a_wrong_body_is_refused_in_one_sentence(site: Site, content: bytes, kind: str, status: int) -> None:
    response = site.client().post("/api/login", content=content, headers={"content-type": kind})
    assert response.status_code == status
    assert response.json()["error"]
    assert "set-cookie" not in response.headers


def test_get_on_the_login_path_is_405(site: Site) -> None:
    assert site.client().get("/api/login").status_code == 405


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("fuzzed"))
    site.users.add(ANN, PASSWORD)
    return site


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode)))
def test_any_body_gets_a_refusal(fuzzed: Site, content: bytes) -> None:
    response = fuzzed.client().post("/api/login", content=content, headers={"content-type": "application/json"})
    assert response.status_code in (400, 401, 429)


CREDENTIALS = (
    (b"cookie", COOKIE.encode() + b"="),
    (b"cookie", b""),
    (b"authorization", b"Bearer "),
    (b"authorization", b"Basic "),
    (b"authorization", b""),
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.fixed_dictionaries({}, optional={"user": json_values, "password": json_values, "token": json_values}))
def test_any_json_gets_a_refusal(fuzzed: Site, body: dict[str, object]) -> None:
    fuzzed.clock.now += 2000
    response = fuzzed.client().post("/api/login", json=body)
    assert response.status_code in (400, 401)


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(CREDENTIALS), st.binary(max_size=120))
def test_any_cookie_and_authorization_get_a_refusal(
    fuzzed: Site, kind: tuple[bytes, bytes], raw: bytes
) -> None:
    name, prefix = kind
    fuzzed.clock.now += 2000
    value = raw.replace(b"\n", b"").replace(b"\r", b"").replace(b"\0", b"")
    response = fuzzed.client().get("/metrics", headers=[(name, prefix + value)])
    assert response.status_code == 401


def test_sessions_work_when_the_folder_cannot_be_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    there = site.logged_in()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert there.get("/metrics").status_code == 200
    client = site.logged_in()
    assert client.get("/metrics").status_code == 200, "sessions must work when the disk is full"
    assert there.post("/api/logout", headers=ORIGIN).status_code == 503
    assert client.post("/api/logout", headers=ORIGIN).status_code == 200


def test_a_failed_write_of_the_first_user_keeps_the_token_valid(
    empty_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = empty_site.setup.new_token()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused = log_in(empty_site.client(), token=token)
    assert refused.status_code == 503
    assert "No space left" in refused.json()["error"]
    assert log_in(empty_site.client(), token=token).status_code == 200


def test_files_in_the_folder(site: Site, tmp_path: Path) -> None:
    site.logged_in()
    names = sorted(path.name for path in site.folder.iterdir())
    assert names == ["audit.log", "sessions.json", "sessions.json.lock", "users.json", "users.json.lock"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in site.folder.iterdir())
