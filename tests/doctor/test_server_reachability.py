"""`doctor --server` tells apart why a server cannot be used, each with a fix. Real sockets, TLS and servers."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.cli import main
from gpuscope.model.doctor_check import CheckResult, Verdict
from gpuscope.serve.doctor.server_reachability import check_server, parse_server_url
from tests.cli.test_commands import running
from tests.engines import running_prometheus
from tests.local_server import QuietHandler, serving_http
from tests.ports import free_port


def problem(url: str, token: str = "", seconds: float = 5.0) -> CheckResult:
    """The last result, which must be the only problem and have a fix."""
    *others, last = check_server(parse_server_url(url, token), seconds=seconds)
    assert last.verdict is Verdict.BAD, last
    assert last.fix
    assert all(result.verdict is not Verdict.BAD for result in others)
    return last


def verdicts(url: str, token: str = "") -> list[Verdict]:
    return [result.verdict for result in check_server(parse_server_url(url, token))]


@contextmanager
def serving(
    status: int, body: bytes = b"", headers: dict[str, str] | None = None, tls: Path | None = None
) -> Iterator[int]:
    """The port of a server that answers every request the same."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
    with serving_http(Handler, tls=context) as port:
        yield port


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """For the address 127.0.0.1, not for the name localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl: not found; it makes the certificate")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=server "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@pytest.mark.parametrize(
    ("code", "said"), [(socket.EAI_NONAME, "does not resolve"), (socket.EAI_AGAIN, "no DNS server answers")]
)
def test_a_name_that_does_not_resolve(code: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise socket.gaierror(code, "failed")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert said in problem("http://gpu-master:9470").what


def test_nothing_listens() -> None:
    found = problem(f"http://127.0.0.1:{free_port()}")
    assert "refuses connections" in found.what
    assert "--listen" in found.fix


def test_a_filtered_port() -> None:
    """A listener whose queue is full drops packets, as a firewall does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        found = problem(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.3)
        for one in waiting:
            one.close()
    assert "does not answer within 0.3 s: a firewall filters it" in found.what
    assert "ufw allow" in found.fix


def test_a_firewall_that_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.EHOSTUNREACH, "No route to host")  # what firewalld's default answer becomes

    monkeypatch.setattr(socket, "create_connection", fail)
    assert "is not reachable: a firewall" in problem("http://127.0.0.1:9470").what


FIREWALL = """table inet firewall {
    chain input {
        type filter hook input priority 0;
        tcp dport 9999 drop
        tcp dport 9998 reject with icmp type admin-prohibited
    }
}
"""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9999", "127.0.0.1:9999 does not answer within 5 s: a firewall filters it"),
        ("http://127.0.0.1:9998", "127.0.0.1:9998 is not reachable: a firewall filters it"),
        ("http://127.0.0.1:9997", "127.0.0.1:9997 refuses connections: nothing listens there"),
        ("http://10.9.9.9:9470", "10.9.9.9:9470 is not reachable"),
        ("http://gpu-master.example:9470", "gpu-master.example cannot be resolved now: no DNS server answers"),
    ],
)
def test_in_a_network_of_its_own_with_a_real_firewall(url: str, said: str) -> None:
    if os.geteuid() or not all(map(shutil.which, ("unshare", "ip", "nft"))):
        pytest.skip("network namespace: needs root, unshare, ip and nft")
    script = f"ip link set lo up && nft -f - && exec {sys.executable} -m gpuscope doctor --server {url}"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script], input=FIREWALL, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert said in done.stdout


def test_a_listener_that_never_answers() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        found = problem(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.3)
    assert "accepts connections but does not answer" in found.what


def test_tls_problems(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"content-type": "application/json"}
    with serving(200, b"gpuscope is ready.\n", headers, tls=certificate) as port:
        untrusted = problem(f"https://127.0.0.1:{port}")
        assert "certificate" in untrusted.what
        assert "SSL_CERT_FILE" in untrusted.fix
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
        other_name = problem(f"https://localhost:{port}")
        assert "not accepted" in other_name.what
        assert "subjectAltName localhost" in other_name.fix
        assert verdicts(f"https://127.0.0.1:{port}") == [Verdict.GOOD] * 5
        assert problem(f"http://127.0.0.1:{port}").fix == f"use https://127.0.0.1:{port}"
    with serving(200) as port:
        found = problem(f"https://127.0.0.1:{port}")
        assert "does not speak TLS" in found.what
        assert f"http://127.0.0.1:{port}" in found.fix


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (404, {}, "is another service: it answers 404"),
        (503, {}, "is another service: it answers 503"),
        (200, {"content-type": "text/html"}, "is another service"),
        (502, {}, "cannot reach the server behind it"),
        (302, {"location": "https://login.example/start"}, "redirects to https://login.example/start"),
        (401, {"www-authenticate": 'Basic realm="x"'}, "needs a login (401, scheme Basic)"),
        (403, {}, "needs a login (403, scheme none named)"),
    ],
)
def test_other_services_and_proxies(status: int, headers: dict[str, str], said: str) -> None:
    with serving(status, b"<html>", headers) as port:
        assert said in problem(f"http://127.0.0.1:{port}").what


def test_something_that_is_not_http() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer() -> None:
            for _ in range(2):  # the connection attempt, and the request; a handshake is refused by the close
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        found = problem(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=1)
        thread.join()
    assert "is not an HTTP server" in found.what


def test_another_exporter_is_not_a_server() -> None:
    with serving(200, b"# TYPE x gauge\nx 1\n", {"content-type": "text/plain"}) as port:
        assert "is an exporter (of another program)" in problem(f"http://127.0.0.1:{port}").what


def test_an_agent_is_not_a_server() -> None:
    with running("agent", "--source", "demo", "--listen", "127.0.0.1:0", until=r"on (http://\S+)/metrics") as (
        _,
        at,
    ):
        found = problem(at[1].replace("localhost", "127.0.0.1"))
    assert "is a gpuscope agent: it has metrics but answers no queries" in found.what
    assert "--targets" in found.fix


def test_a_prometheus_is_fine() -> None:
    with running_prometheus() as base:
        results = list(check_server(parse_server_url(base)))
    assert [result.verdict for result in results] == [Verdict.GOOD] * 5
    assert "is a Prometheus" in results[2].what


def test_login_token_and_host_name_of_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "data")
    argv = ("up", "--demo", "--demo-nodes", "1", "--login", "always", "--listen", "127.0.0.1:0", "--data", data)
    with running(*argv, until=r"gpuscope is at (http://\S+)") as (_, at):
        url = at[1]
        needs_login = problem(url)
        assert "needs a login (401, scheme Bearer)" in needs_login.what
        assert "gpuscope user token" in needs_login.fix
        assert "refuses these credentials" in problem(url, "wrong").what
        assert "or user and password" in problem(url.replace("://", "://bob:wrong@")).fix
        assert main(["user", "token", "doctor", "--data", data]) == 0
        token = max(capsys.readouterr().out.split(), key=len)
        assert verdicts(url, token) == [Verdict.GOOD] * 5
        assert main(["doctor", "--server", url, "--json"]) == 1
        printed = json.loads(capsys.readouterr().out)
        assert printed[-1]["what"] == needs_login.what


def test_a_refused_host_name() -> None:
    with serving(421, b"gpuscope", {"content-type": "application/json"}) as port:
        found = problem(f"http://localhost:{port}")
    assert "does not accept the host name localhost" in found.what
    assert "--allowed-hosts localhost" in found.fix


@pytest.mark.parametrize("text", ["gpu1", "gpu1:9470", "ftp://gpu1", "http://"])
def test_a_wrong_url_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"--server: .* is not a URL; for example http://server:9470"):
        parse_server_url(text)


@pytest.mark.parametrize("text", ["http://a:99999", "http://a:x", "http://a:0"])
def test_a_wrong_port_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--server: the port of 'http://a:.* is not a number from 1 to 65535"):
        parse_server_url(text)
