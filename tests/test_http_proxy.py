"""Requests through proxies, and OAuth 2 tokens: whom they reach, what they carry, and what is refused."""

from __future__ import annotations

import json
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from gpuscope.base.blocking_http import HttpResponse, open_url
from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.errors import UsageError
from gpuscope.base.http_config import HttpConfig, read_sender_config
from gpuscope.base.http_proxy import ProxyRules, environment_rules
from gpuscope.base.oauth2 import ClientCredentials
from tests.local_server import QuietHandler, serving_http, serving_in_thread
from tests.server.certificates import make_certificate

FAR = "far.example"


def post(url: str, http: HttpConfig, body: bytes = b"x") -> HttpResponse:
    client, target = open_url(url, http, timeout_seconds=30.0, max_body_bytes=1000)
    with client:
        return client.request("POST", target, (), body)


@contextmanager
def recording(tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[tuple[str, dict[str, str]]]]]:
    """A server that keeps the paths and headers of its requests."""
    requests: list[tuple[str, dict[str, str]]] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            self.read_body()
            requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.answer(b"{}")

    with serving_http(Handler, tls=tls) as port:
        yield port, requests


class TunnelProxy(socketserver.ThreadingTCPServer):
    """Answers CONNECT or SOCKS 5, and then joins each connection with one server."""

    daemon_threads = True

    def __init__(self, port: int, *, is_socks: bool = False, status: str = "200 OK") -> None:
        super().__init__(("127.0.0.1", 0), _TunnelHandler)
        self.port, self.is_socks, self.status = port, is_socks, status
        self.asked: list[bytes] = []

    def handle_error(self, *args: object) -> None:
        """Prints nothing."""


class _TunnelHandler(socketserver.BaseRequestHandler):
    server: TunnelProxy

    def handle(self) -> None:
        near: socket.socket = self.request
        if self.server.is_socks:
            self.server.asked.append(near.recv(100))
            near.sendall(b"\x05\x02")
            self.server.asked.append(near.recv(600))
            near.sendall(b"\x01\x00")
            self.server.asked.append(near.recv(600))
            near.sendall(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50")
        else:
            self.server.asked.append(near.recv(65536))
            near.sendall(f"HTTP/1.1 {self.server.status}\r\n\r\n".encode())
            if not self.server.status.startswith("200"):
                return
        with socket.create_connection(("127.0.0.1", self.server.port)) as far:
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    (far if ready is near else near).sendall(data)


@contextmanager
def tunnel(port: int, **options: Any) -> Iterator[TunnelProxy]:
    with TunnelProxy(port, **options) as proxy, serving_in_thread(proxy):
        yield proxy


def sender_config(tmp_path: Path, **keys: object) -> HttpConfig:
    table = ConfigMapping(keys, "file", tmp_path)
    config = read_sender_config(table)
    table.finish((), lambda text: None)
    return config


def test_a_plain_request_names_its_server_to_the_proxy(tmp_path: Path) -> None:
    with recording() as (port, requests):
        http = sender_config(tmp_path, proxy_url=f"http://me:p%40ss@127.0.0.1:{port}/")
        assert post(f"http://{FAR}:81/a?b=c", http).status == 200
    ((path, headers),) = requests
    assert path == f"http://{FAR}:81/a?b=c"
    assert headers["host"] == f"{FAR}:81"
    assert headers["proxy-authorization"] == "Basic bWU6cEBzcw=="


def test_tls_goes_through_a_tunnel(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, sans=f"DNS:{FAR}")
    with recording(certificate.server_context()) as (port, requests), tunnel(port) as proxy:
        http = sender_config(
            tmp_path,
            proxy_url=f"http://me:x@127.0.0.1:{proxy.server_address[1]}",
            proxy_connect_header={"X-Team": ["nlp"]},
            tls_config={"ca_file": str(certificate.cert)},
        )
        assert post(f"https://{FAR}/a", http).status == 200
    ((path, headers),) = requests
    assert path == "/a"
    assert not {"proxy-authorization", "x-team"} & headers.keys(), "they are for the proxy only"
    asked = proxy.asked[0].decode().lower()
    assert asked.startswith(f"connect {FAR}:443 http/1.1\r\n")
    assert "proxy-authorization: basic bwu6ea==" in asked
    assert "x-team: nlp" in asked


def test_a_proxy_that_refuses_a_tunnel_is_named_as_the_cause(tmp_path: Path) -> None:
    with tunnel(1, status="407 Proxy Authentication Required") as proxy:
        http = sender_config(tmp_path, proxy_url=f"127.0.0.1:{proxy.server_address[1]}")
        with pytest.raises(OSError, match=r"the proxy refuses a tunnel to far\.example:443: HTTP status 407"):
            post(f"https://{FAR}/a", http)


def test_socks(tmp_path: Path) -> None:
    with recording() as (port, requests), tunnel(port, is_socks=True) as proxy:
        http = sender_config(tmp_path, proxy_url=f"socks5://me:secret@127.0.0.1:{proxy.server_address[1]}")
        assert post(f"http://{FAR}/a", http).status == 200
    assert [path for path, _ in requests] == ["/a"]
    assert proxy.asked == [
        b"\x05\x02\x00\x02", b"\x01\x02me\x06secret", b"\x05\x01\x00\x03\x0bfar.example\x00\x50",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "exceptions", "is_proxied"),
    [
        ("http://far.example/", "", True),
        ("http://localhost:9093/", "", False),
        ("http://127.1.2.3/", "", False),
        ("http://[::1]/", "", False),
        ("http://far.example/", "*", False),
        ("http://far.example/", "far.example", False),
        ("http://far.example./", "far.example", False),
        ("http://FAR.example/", "Far.Example", False),
        ("http://a.far.example/", "far.example", False),
        ("http://nofar.example/", "far.example", True),
        ("http://far.example/", ".far.example", True),
        ("http://a.far.example/", "x, .far.example", False),
        ("http://a.far.example/", "*.far.example", False),
        ("http://far.example:81/", "far.example:82", True),
        ("http://far.example:81/", "far.example:81", False),
        ("http://10.1.2.3/", "10.0.0.0/8", False),
        ("http://11.1.2.3/", "10.0.0.0/8", True),
        ("http://10.1.2.3:81/", "10.1.2.3:81", False),
        ("http://[fd00::1]:81/", "fd00::/8", False),
        ("http://[fd00::1]:81/", "[fd00::1]:81", False),
        ("http://[fd00::1]:81/", "fd00::1", False),
        ("http://far.example/", ",, :81, /8, 10.0.0.0/99", True),
    ],
)
def test_what_needs_no_proxy(url: str, exceptions: str, is_proxied: bool) -> None:
    parts = urlsplit(url)
    server = ProxyRules("http://p:1", "", exceptions).server_for("http", parts.hostname or "", parts.port or 80)
    assert (server is not None) is is_proxied


def test_the_environment_is_asked_where_nothing_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording() as (port, requests):
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "near.example")
        assert post(f"http://{FAR}/a", HttpConfig()).status == 200
        assert post(f"http://{FAR}/b", sender_config(tmp_path, proxy_from_environment=True)).status == 200
        assert [path for path, _ in requests] == [f"http://{FAR}/a", f"http://{FAR}/b"]
        off = sender_config(tmp_path, proxy_from_environment=False)
        with pytest.raises(OSError):
            post("http://far.invalid/c", off)
        assert len(requests) == 2


def test_variables_of_the_environment() -> None:
    rules = environment_rules({"HTTPS_PROXY": "a", "https_proxy": "b", "no_proxy": "c"})
    assert (rules.http, rules.https, rules.exceptions) == ("", "a", "c")
    assert environment_rules({"HTTP_PROXY": "a", "REQUEST_METHOD": "GET"}).http == "", "a header of a request"


def test_a_proxy_that_cannot_be_used_does_not_send_the_request_another_way() -> None:
    with recording() as (port, requests):
        http = HttpConfig(proxies=ProxyRules(http="https://me:secret@p:1"))
        with pytest.raises(OSError, match="only http:// and socks5:// proxies are supported") as error:
            post(f"http://{FAR}:{port}/", http)
        assert "secret" not in str(error.value)
        assert not requests


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"proxy_url": "https://me:hidden@p"}, "only http:// and socks5:// proxies"),
        ({"proxy_url": "http://"}, "its URL has no host"),
        ({"no_proxy": "a"}, "needs proxy_url"),
        ({"proxy_url": "http://p", "proxy_from_environment": True}, "not both"),
        ({"proxy_connect_header": {"A": ["b"]}}, "needs proxy_url or proxy_from_environment"),
        ({"oauth2": {"client_id": "a", "client_secret": "hidden", "token_url": "x"}}, "is not an http://"),
        ({"oauth2": {"client_secret": "hidden", "token_url": "http://x"}}, "client_id: must be given"),
        (
            {"oauth2": {"client_id": "a", "token_url": "http://x", "grant_type": "password"}},
            "only client_credentials",
        ),
        (
            {"oauth2": {"client_id": "a", "token_url": "http://x"}, "bearer_token": "hidden"},
            "use only one of basic_auth, authorization, bearer_token and oauth2",
        ),
    ],
)
def test_a_configuration_that_cannot_be_meant(keys: dict[str, object], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why) as error:
        sender_config(tmp_path, **keys)
    assert "hidden" not in str(error.value)


class TokenServer:
    """Gives out tokens; which requests it got."""

    def __init__(self, answers: list[tuple[int, object]]) -> None:
        self.answers = answers
        self.forms: list[dict[str, str]] = []
        self.authorizations: list[str] = []
        server = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.read_body()
                if self.path != "/token":
                    server.authorizations.append(self.headers.get("authorization", ""))
                    return self.answer(b"{}", status=401 if "stale" in server.authorizations[-1] else 200)
                form = dict(parse_qsl(body.decode(), keep_blank_values=True))
                server.forms.append({**form, "header": self.headers.get("authorization", "")})
                status, answer = server.answers.pop(0)
                return self.answer(json.dumps(answer).encode(), status=status)

        self.handler = Handler


def credentials(port: int, **more: Any) -> ClientCredentials:
    return ClientCredentials(f"http://127.0.0.1:{port}/token", "me+", secret="s ecret", **more)


def test_a_token_is_fetched_once_and_again_when_it_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("gpuscope.base.oauth2.time.monotonic", lambda: now[0])
    token = {"access_token": "t1", "token_type": "bearer", "expires_in": 60}
    server = TokenServer([(200, token), (200, {"access_token": "t2", "expires_in": "60"})])
    with serving_http(server.handler) as port:
        http = HttpConfig(oauth2=credentials(port, scopes=("a", "b"), parameters=(("audience", "x"),)))
        for _ in range(2):
            assert post(f"http://127.0.0.1:{port}/hook", http).status == 200
        now[0] += 51
        post(f"http://127.0.0.1:{port}/hook", http)
    assert server.authorizations == ["Bearer t1", "Bearer t1", "Bearer t2"]
    assert server.forms[0] == {
        "grant_type": "client_credentials", "scope": "a b", "audience": "x",
        "header": "Basic bWUlMkI6cytlY3JldA==",
    }  # fmt: skip


def test_a_server_that_wants_the_secret_in_the_form(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("new\n")
    server = TokenServer([(401, {}), (200, {"access_token": "t"})])
    with serving_http(server.handler) as port:
        http = HttpConfig(oauth2=credentials(port, secret_file=tmp_path / "secret"))
        assert post(f"http://127.0.0.1:{port}/hook", http).status == 200
    assert server.forms[1] == {
        "grant_type": "client_credentials", "client_id": "me+", "client_secret": "new", "header": "",
    }  # fmt: skip


def test_a_refused_token_is_not_used_again() -> None:
    server = TokenServer([(200, {"access_token": "stale"}), (200, {"access_token": "fresh"})])
    with serving_http(server.handler) as port:
        http = HttpConfig(oauth2=credentials(port))
        assert [post(f"http://127.0.0.1:{port}/hook", http).status for _ in range(2)] == [401, 200]


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (500, {}, "HTTP status 500"),
        (200, {"token": "t"}, "has none"),
        (200, [], "has none"),
        (200, {"access_token": "a\r\nx: y"}, "has none"),
        (200, {"access_token": 5}, "has none"),
        (200, {"access_token": "t", "token_type": 5}, "has none"),
    ],
)
def test_no_token_no_request(status: int, answer: object, why: str) -> None:
    server = TokenServer([(status, answer), (status, answer)])
    with serving_http(server.handler) as port:
        with pytest.raises(OSError, match=f"no OAuth 2 token: .*{why}") as error:
            post(f"http://127.0.0.1:{port}/hook", HttpConfig(oauth2=credentials(port)))
        assert "ecret" not in str(error.value)
    assert server.authorizations == []


def test_many_threads_fetch_one_token() -> None:
    server = TokenServer([(200, {"access_token": "t", "expires_in": 3600})])
    with serving_http(server.handler) as port:
        tokens = credentials(port)
        threads = [threading.Thread(target=tokens.header, args=(30.0,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(server.forms) == 1
