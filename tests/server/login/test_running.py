"""The login of a real `gpuscope up`, over real sockets: first start, a command beside it, a restart, TLS."""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from gpuscope.serve.login.user_file import UserFile
from tests.engines import engine
from tests.server.login.support import ANN, CHEAP_ROUNDS, PASSWORD

QUICK = ("up", "--demo", "--demo-nodes", "1", "--demo-gpus", "1", "--seed", "3")


@contextmanager
def running(data: Path, *argv: str, command: Sequence[str] = QUICK) -> Iterator[tuple[str, str]]:
    """Yields the port and the setup token, which is empty if a user exists."""
    whole = [sys.executable, "-m", "gpuscope", *command, "--data", str(data), *argv]
    environment = {**os.environ, "GPUSCOPE_LOG_LEVEL": "info"}
    process = subprocess.Popen(whole, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    seen, token = [], ""
    try:
        for line in process.stderr:
            seen.append(line)
            if found := re.search(r"one-time token: (\S+)", line):
                token = found[1]
            if found := re.search(r"gpuscope is at https?://\S+:(\d+)", line):
                yield found[1], token
                return
        pytest.fail("it ended: " + "".join(seen))
    finally:
        process.send_signal(signal.SIGTERM)
        process.stderr.close()
        process.wait()


def test_first_start_user_command_and_restart(tmp_path: Path) -> None:
    with running(tmp_path, "--listen", "0.0.0.0:0") as (port, token):
        base = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=base) as client:
            assert client.get("/-/healthy").status_code == 200
            assert client.get("/api/v1/query?query=up").json()["login"] is True
            forged = {"x-forwarded-user": "root", "x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "https"}
            assert client.get("/metrics", headers=forged).status_code == 401
            first = client.post(
                "/api/login", json={"token": token, "user": ANN, "password": PASSWORD}, headers={"origin": base}
            )
            assert first.json() == {"user": ANN}
            assert "Secure" not in first.headers["set-cookie"]
            cookies = dict(client.cookies)
            assert client.get("/api/v1/query?query=up").json()["status"] == "success"
            assert "server" not in client.get("/").headers
        api_token = UserFile(tmp_path, rounds=CHEAP_ROUNDS).add_token("grafana")
        client_request = httpx2.post(
            f"{base}/api/v1/query", data={"query": "up"}, headers={"authorization": f"Bearer {api_token}"}
        )
        assert client_request.json()["status"] == "success"
    with running(tmp_path, "--listen", "0.0.0.0:0") as (port, token):
        assert token == ""
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", cookies=cookies) as client:
            assert client.get("/api/session").json() == {
                "user": ANN,
                "via": "session",
                "role": "admin",
            }


@pytest.mark.engine("promtool")
def test_prometheus_authenticates_by_password_and_by_token(tmp_path: Path) -> None:
    promtool = engine("promtool")
    users = UserFile(tmp_path / "data", rounds=CHEAP_ROUNDS)
    users.add(ANN, PASSWORD)
    token = users.add_token("promtool")
    config = tmp_path / "http.yml"

    def ask(port: str, credentials: str) -> subprocess.CompletedProcess[str]:
        config.write_text(credentials)
        command = [
            str(promtool),
            "query",
            "instant",
            f"--http.config.file={config}",
            f"http://127.0.0.1:{port}",
            "vector(42)",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with running(tmp_path / "data", "--listen", "0.0.0.0:0") as (port, _):
        for good in (
            f"basic_auth: {{username: {ANN}, password: {PASSWORD}}}",
            f"authorization: {{credentials: {token}}}",
        ):
            answer = ask(port, good)
            assert "=> 42" in answer.stdout, answer.stderr
        refused = ask(port, f"authorization: {{credentials: {token}x}}")
        assert refused.returncode != 0
        assert "API token" in refused.stderr


def test_loopback_needs_no_login_unless_login_is_always(tmp_path: Path) -> None:
    with running(tmp_path, "--listen", "127.0.0.1:0") as (port, token):
        assert token == ""
        assert httpx2.get(f"http://127.0.0.1:{port}/api/session").json()["open"] is True
        rebound = httpx2.get(f"http://127.0.0.1:{port}/metrics", headers={"host": f"evil.example:{port}"})
        assert rebound.status_code == 421
    with running(tmp_path, "--listen", "127.0.0.1:0", "--login", "always") as (port, token):
        assert token
        assert httpx2.get(f"http://127.0.0.1:{port}/metrics").status_code == 401


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls_uses_a_secure_cookie(tmp_path: Path) -> None:
    make = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        " -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True)
    config = tmp_path / "web.yml"
    config.write_text("tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n")
    UserFile(tmp_path / "data", rounds=CHEAP_ROUNDS).add(ANN, PASSWORD)
    argv = ("--listen", "0.0.0.0:0", "--web-config-file", str(config))
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with (
        running(tmp_path / "data", *argv) as (port, _),
        httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=trust) as client,
    ):
        response = client.post("/api/login", json={"user": ANN, "password": PASSWORD})
        assert response.headers["set-cookie"].startswith("__Host-gpuscope_session=")
        assert response.headers["set-cookie"].endswith("; Secure")
        assert client.get("/api/session").json()["user"] == ANN


def test_the_server_command_requires_a_login(tmp_path: Path) -> None:
    with running(tmp_path, "--listen", "0.0.0.0:0", command=("server",)) as (port, token):
        assert token
        base = f"http://127.0.0.1:{port}"
        assert httpx2.get(f"{base}/-/ready").status_code == 200
        assert httpx2.get(f"{base}/metrics").status_code == 401
        assert httpx2.post(f"{base}/api/v1/write", content=b"x").status_code == 401
        UserFile(tmp_path, rounds=CHEAP_ROUNDS).add(ANN, PASSWORD)
        wrong_kind = httpx2.post(f"{base}/api/v1/write", content=b"x", auth=(ANN, PASSWORD))
        assert wrong_kind.status_code in (400, 415), "let in, and then judged"
        assert httpx2.get(f"{base}/metrics", auth=(ANN, PASSWORD)).status_code == 200
