"""Access by programs and through proxies, host names, and other sites' requests."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import bcrypt
import pytest

from gpuscope.base.limits import Limits
from gpuscope.serve.http.connection_limits import ConnectionLimit
from gpuscope.serve.http.messages import Request, Response, text
from gpuscope.serve.login.access import AccessPolicy, with_access_policy
from gpuscope.serve.login.access_rules import HostRule, parse_networks
from gpuscope.serve.login.user_file import UserFile
from gpuscope.serve.web_config import load_web_config
from tests.server.client import Client
from tests.server.login.support import ANN, CHEAP_ROUNDS, ORIGIN, PASSWORD, Site, app_with, log_in


def basic(user: str = ANN, password: str = PASSWORD) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def bcrypt_calls(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    calls: list[bytes] = []
    real = bcrypt.checkpw

    def spy(password: bytes, hashed: bytes) -> bool:
        calls.append(hashed)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", spy)
    return calls


def test_basic_auth_queries_by_form_and_runs_bcrypt_once(site: Site, bcrypt_calls: list[bytes]) -> None:
    client = site.client()
    for _ in range(20):
        response = client.post("/api/v1/query", data={"query": "up"}, headers=basic())
        assert response.status_code == 200
    assert client.get("/api/session", headers=basic()).json() == {
        "user": ANN,
        "via": "password",
        "role": "admin",
    }
    assert len(bcrypt_calls) == 1
    assert "set-cookie" not in response.headers
    UserFile(site.folder, rounds=CHEAP_ROUNDS).set_password(ANN, "another, longer one")
    assert client.get("/metrics", headers=basic()).status_code == 401, "what was proven is no longer true"


def test_basic_auth_is_rate_limited(site: Site, bcrypt_calls: list[bytes]) -> None:
    client = site.client()
    statuses = [client.get("/metrics", headers=basic(password=f"guess {n}")).status_code for n in range(9)]
    assert statuses == [401] * 5 + [429] * 4
    assert len(bcrypt_calls) == 5
    assert log_in(client).status_code == 429, "one count for both ways"


@pytest.mark.parametrize(
    "value", ["Basic", "Basic !!!", "Basic YW5u", "Digest x", "Bearer", "Bearer  ", "\xff", "Basic /w=="]
)
def test_a_malformed_authorization_is_a_401_even_with_a_valid_cookie(site: Site, value: str) -> None:
    client = site.logged_in()
    response = client.get("/metrics", headers=[(b"authorization", value.encode("latin-1"))])
    assert response.status_code == 401


def test_two_authorization_headers_are_refused(site: Site) -> None:
    value = basic()["authorization"].encode()
    pairs = [(b"authorization", value), (b"authorization", value)]
    assert site.client().get("/metrics", headers=pairs).status_code == 400


def test_an_api_token_reads_until_it_is_revoked(site: Site) -> None:
    elsewhere = UserFile(site.folder)
    token = elsewhere.add_token("grafana")
    client = site.client()
    assert client.get("/federate", headers=bearer(token)).status_code == 200
    assert client.post("/api/v1/query", data={"query": "up"}, headers=bearer(token)).status_code == 200
    assert client.get("/api/session", headers=bearer(token)).json() == {
        "user": "grafana",
        "via": "token",
        "role": "viewer",
    }
    assert client.get("/metrics", headers=bearer(token[:-1])).status_code == 401
    refused = client.post("/api/v1/write", content=b"x", headers=bearer(token))
    assert (refused.status_code, refused.json()["error"]) == (403, "this API token is read-only")
    elsewhere.revoke_token("grafana")
    assert client.get("/federate", headers=bearer(token)).status_code == 401


def test_remote_write_by_password_or_write_token(site: Site) -> None:
    client = site.client()
    assert client.post("/api/v1/write", content=b"x").status_code == 401
    assert client.post("/api/v1/write", content=b"x", headers=basic()).status_code == 204
    token = site.users.add_token("node7", writes=True)
    assert client.post("/api/v1/write", content=b"x", headers=bearer(token)).status_code == 204


def test_a_write_token_permits_remote_write_only(site: Site) -> None:
    client, token = site.client(), site.users.add_token("node7", writes=True)
    for method, path in (
        ("GET", "/federate"),
        ("GET", "/metrics"),
        ("GET", "/api/session"),
        ("GET", "/api/v1/query"),
        ("POST", "/api/v1/query"),
        ("GET", "/api/v1/write"),
        ("POST", "/api/v1/write/"),
        ("POST", "/api/v1/admin/tsdb/delete_series"),
        ("PUT", "/api/v1/admin/tsdb/snapshot"),
        ("POST", "/api/logout"),
    ):
        refused = client.request(method, path, headers=bearer(token))
        assert refused.status_code == 403, (method, path)
        assert refused.json()["error"] == "this API token permits remote write only"


def test_unknown_tokens_are_rate_limited_and_valid_ones_always_pass(site: Site) -> None:
    client, token = site.client(), site.users.add_token("grafana")
    found = [client.get("/federate", headers=bearer(f"guess{n}")).status_code for n in range(7)]
    assert found == [401] * 5 + [429] * 2
    assert client.get("/federate", headers=bearer(token)).status_code == 200
    assert client.get("/federate", headers=basic()).status_code == 429, "a password is an attempt too"
    assert site.client("10.0.0.9").get("/federate", headers=basic()).status_code == 200


def test_another_site_cannot_frame_a_query(site: Site) -> None:
    client = site.logged_in()
    cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    for dest in ("iframe", "document", "object"):
        client_request = client.get("/api/v1/query?query=up", headers={**cross, "sec-fetch-dest": dest})
        assert client_request.status_code == 403, dest
    assert client.get("/", headers={**cross, "sec-fetch-dest": "document"}).status_code != 403
    assert client.get("/", headers={**cross, "sec-fetch-dest": "iframe"}).status_code == 403


def test_a_change_by_cookie_needs_proof_of_origin(site: Site) -> None:
    client = site.logged_in()
    for path in ("/api/v1/write", "/api/logout"):
        for headers in (
            {},
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
        ):
            assert client.post(path, headers=headers).status_code == 403, (path, headers)
    assert client.get("/api/session").status_code == 200, "still logged in"
    assert client.post("/api/v1/write", content=b"x", headers=ORIGIN).status_code == 204
    assert client.post("/api/v1/query", data={"query": "up"}, headers=ORIGIN).status_code == 200
    assert client.post("/api/v1/query", data={"query": "up"}).status_code == 200, "changes nothing"
    crossed = client.post("/api/v1/query", data={"query": "up"}, headers={"origin": "http://evil.example"})
    assert crossed.status_code == 403


def test_basic_auth_stored_by_the_browser_is_useless_to_other_sites(site: Site) -> None:
    headers = {**basic(), "origin": "http://evil.example"}
    assert site.client().post("/api/v1/write", content=b"x", headers=headers).status_code == 403


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "same-site"}])
def test_another_site_cannot_log_a_browser_in(site: Site, headers: dict[str, str]) -> None:
    response = site.client().post("/api/login", json={"user": ANN, "password": PASSWORD}, headers=headers)
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


def test_cors_preflight_is_never_allowed(site: Site) -> None:
    client_request = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    response = site.client().options("/api/v1/query", headers=client_request)
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/login", "/api/v1/query"])
def test_dns_rebinding_is_refused_on_every_path(site: Site, path: str) -> None:
    response = site.logged_in().get(path, headers={"host": "evil.example:9470"})
    assert response.status_code == 421
    assert "'evil.example:9470'" in response.json()["error"]
    assert "--allowed-hosts" in response.json()["error"]


def test_a_request_without_a_host_or_with_two_is_refused(site: Site) -> None:
    client = site.client()
    assert client.get("/metrics", headers={"host": ""}).status_code == 400
    twice = [(b"host", b"gpus.example"), (b"host", b"evil.example")]
    assert client.get("/metrics", headers=twice).status_code == 400


PROXY = "10.0.0.1"


@pytest.fixture
def proxied(tmp_path: Path) -> Site:
    return Site(tmp_path, proxies=["10.0.0.0/30"], proxy_header="X-Forwarded-User")


def test_the_proxy_user_header_counts_from_the_proxy_only(proxied: Site) -> None:
    said = {"x-forwarded-user": "ann@example"}
    inside = proxied.client(PROXY)
    assert inside.get("/api/session", headers=said).json() == {
        "user": "ann@example",
        "via": "proxy",
        "role": "viewer",
    }
    assert inside.get("/metrics", headers=said).status_code == 200
    assert inside.get("/metrics").status_code == 401
    for address in ("10.0.0.4", "127.0.0.1", "::1", "testclient"):
        forged = {**said, "x-forwarded-for": PROXY, "forwarded": f"for={PROXY}"}
        assert proxied.client(address).get("/metrics", headers=forged).status_code == 401


def test_malformed_proxy_user_headers_are_refused(proxied: Site) -> None:
    client = proxied.client(PROXY)
    for value in (b"", b"a" * 200, b"a\x07b", b"\xe2\x80\xae evil"):
        assert client.get("/metrics", headers=[(b"x-forwarded-user", value)]).status_code == 401, value
    twice = [(b"x-forwarded-user", b"ann"), (b"x-forwarded-user", b"root")]
    assert client.get("/metrics", headers=twice).status_code == 401
    korean = client.get("/api/session", headers=[(b"x-forwarded-user", "안나".encode())])
    assert korean.json()["user"] == "안나"


def test_a_change_through_a_proxy_needs_proof_of_the_public_origin(proxied: Site) -> None:
    proxied.users.add(ANN, PASSWORD)  # as an admin
    said = {"x-forwarded-user": ANN, "x-forwarded-host": "gpus.example", "x-forwarded-proto": "https"}
    client = Client(proxied.app, "http://127.0.0.1:9470", PROXY)
    assert client.post("/api/v1/write", headers=said).status_code == 403
    own = {**said, "origin": "https://gpus.example"}
    assert client.post("/api/v1/write", headers=own).status_code == 204
    assert client.get("/metrics", headers={**said, "x-forwarded-host": "evil.example"}).status_code == 421


def test_clients_behind_a_proxy_are_rate_limited_individually(proxied: Site) -> None:
    proxied.users.add(ANN, PASSWORD)
    client = proxied.client(PROXY)
    for _ in range(6):
        guess = {**basic(password="wrong password"), "x-forwarded-for": "6.6.6.6, 1.2.3.4"}
        last = client.get("/metrics", headers=guess)
    assert last.status_code == 429
    assert client.get("/metrics", headers={**basic(), "x-forwarded-for": "1.2.3.5"}).status_code == 200


def open_client() -> Client:
    app = app_with(AccessPolicy(HostRule.build("127.0.0.1", [])))
    return Client(app, "http://127.0.0.1:9470")


def test_an_open_server_refuses_cross_site_requests() -> None:
    client = open_client()
    assert client.get("/api/session").json() == {"open": True, "role": "admin"}
    assert client.get("/metrics").status_code == 200
    assert client.post("/api/v1/write", content=b"x").status_code == 204
    assert client.post("/api/login", json={"user": ANN, "password": PASSWORD}).status_code == 404
    assert client.post("/api/logout").json() == {"open": True}
    assert client.get("/metrics", headers={"host": "evil.example"}).status_code == 421
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert client.post("/api/v1/write", content=b"x", headers=headers).status_code == 403
    picture = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    assert client.get("/api/v1/query?query=costly", headers=picture).status_code == 403


def test_users_of_a_web_configuration_file(tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users:\n  ann: {hashed}\n")
    app = app_with(AccessPolicy(HostRule.build("", []), guard=load_web_config(file).guard))
    client = Client(app, "http://10.0.0.9:9470")
    assert client.get("/-/healthy").status_code == 200
    refused = client.get("/")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="gpuscope"')
    assert client.get("/metrics", headers=basic(password="secret")).status_code == 200
    assert client.get("/api/session", headers=basic(password="secret")).json() == {
        "open": True,
        "role": "admin",
    }
    assert (
        client.get("/metrics", headers={**basic(password="secret"), "host": "evil.example"}).status_code == 421
    )


def test_requests_through_a_trusted_proxy_are_counted_by_its_client() -> None:
    proxies = parse_networks(["10.0.0.1"], "--proxy-auth-from")
    clients = ConnectionLimit(Limits(max_connections_per_address=1))
    access = AccessPolicy(HostRule.build("0.0.0.0", []), proxies, clients=clients)

    def client_request(client: str) -> Request:
        headers = [("host", "localhost"), ("x-forwarded-for", client)]
        return Request("GET", "/federate", headers, peer="10.0.0.1")

    async def run() -> list[int]:
        may_answer = asyncio.Event()

        async def slow(request: Request) -> Response:
            await may_answer.wait()
            return text("numbers")

        handler = with_access_policy(access, slow)
        first = asyncio.ensure_future(handler(client_request("192.0.2.1")))
        await asyncio.sleep(0)
        refused = await handler(client_request("192.0.2.1"))
        other = asyncio.ensure_future(handler(client_request("192.0.2.2")))
        await asyncio.sleep(0)
        may_answer.set()
        responses = [await first, refused, await other, await handler(client_request("192.0.2.1"))]
        return [response.status for response in responses]

    assert asyncio.run(run()) == [200, 503, 200, 200]
    assert clients.by_address == {}
