from __future__ import annotations

import asyncio
import base64
import shutil
import ssl
import subprocess
from pathlib import Path

import bcrypt
import pytest

from gpuscope.errors import UsageError
from gpuscope.server.http.listening import Server
from gpuscope.server.http.messages import Request
from gpuscope.server.web_config import load_web_config
from tests.server.http.support import hello


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "web.yml"
    path.write_text(text)
    return path


def credentials(user: str, password: str) -> Request:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Request("GET", "/", [("authorization", f"Basic {encoded}")])


def test_passwords(tmp_path: Path) -> None:
    stored = bcrypt.hashpw(b"s:cret", bcrypt.gensalt(4)).decode()
    guard = load_web_config(written(tmp_path, f"basic_auth_users:\n  ann: {stored}\n")).guard
    assert guard is not None

    async def statuses(*requests: Request) -> list[int]:
        answers = [await guard(request, "10.0.0.1") for request in requests]
        return [200 if answer is None else answer.status for answer in answers]

    good = credentials("ann", "s:cret")
    wrong = (
        credentials("ann", "guess"),
        credentials("bob", "s:cret"),
        Request("GET", "/"),
        Request("GET", "/", [("authorization", "Basic ???")]),
        Request("GET", "/", [("authorization", "Bearer s:cret")]),
    )
    assert asyncio.run(statuses(good, good, *wrong)) == [200, 200, *[401] * 5]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls(tmp_path: Path) -> None:
    make = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    )
    subprocess.run(
        [*make.split(), "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    config = load_web_config(written(tmp_path, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}"))

    async def scrape() -> bytes:
        server = Server(hello, tls=config.tls.context if config.tls else None)
        port = await server.start("127.0.0.1", 0)
        trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trust, server_hostname="localhost"
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        await server.stop()
        return answer

    assert asyncio.run(scrape()).endswith(b"hello\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("basic_auth_users: {ann: plain}", "not a bcrypt hash"),
        ("tls_server_config: {cert_file: c.pem}", "key_file"),
        ("tls_server_config: {cert_file: c.pem, key_file: k.pem}", "tls_server_config"),
        ("tls: {}", "unknown section 'tls'"),
        ("- a", "must be a mapping"),
        ("a: [", "not valid YAML"),
    ],
)
def test_mistakes_are_one_sentence_that_names_the_file(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        load_web_config(written(tmp_path, text))
    assert "web.yml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.yml"):
        load_web_config(tmp_path / "no.yml")
