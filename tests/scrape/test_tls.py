"""TLS: server verification, client certificates, and error messages."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.errors import UsageError
from gpuscope.base.http_config import HttpConfig, load_http_config, read_http_config
from gpuscope.history.remote_write.sender import PostClient
from gpuscope.history.scrape.fetch import Fetched, ScrapeBodyBudget, ScrapeError, TargetClient, fetch
from tests.scrape.exporters import serving, text

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=node "
        "-addext subjectAltName=DNS:node.example -keyout key.pem -out cert.pem"
    )
    subprocess.run(shlex.split(command), cwd=made, check=True, capture_output=True)
    return made


@contextmanager
def secured(folder: Path, client_certificate: bool = False) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "cert.pem")
    with serving({"/metrics": text("a 1\n")}, tls=context) as address:
        yield f"https://{address}/metrics"


def http(folder: Path, **tls: Any) -> HttpConfig:
    return read_http_config(ConfigMapping({"tls_config": tls}, "job", folder))


def get(url: str, config: HttpConfig) -> Fetched:
    async def once() -> Fetched:
        client = TargetClient(url, config, timeout_seconds=5, server_name=config.server_name)
        try:
            with ScrapeBodyBudget(1000).share() as share:
                return await fetch(client, max_bytes=1000, share=share)
        finally:
            await client.aclose()

    return asyncio.run(once())


def test_the_server_certificate_is_verified(folder: Path) -> None:
    with secured(folder) as url:
        trusted = http(folder, ca_file="cert.pem", server_name="node.example")
        assert get(url, trusted).body == b"a 1\n"
        assert get(url, http(folder, insecure_skip_verify=True)).body == b"a 1\n"
        with pytest.raises(ScrapeError, match=r"(?i)certificate"):
            get(url, HttpConfig())
        with pytest.raises(ScrapeError, match=r"(?i)mismatch|not valid for"):
            get(url, http(folder, ca_file="cert.pem"))


def test_client_certificate(folder: Path) -> None:
    with secured(folder, client_certificate=True) as url:
        known = http(folder, insecure_skip_verify=True, cert_file="cert.pem", key_file="key.pem")
        assert get(url, known).body == b"a 1\n"
        inline = {name: (folder / f"{name}.pem").read_text() for name in ("cert", "key")}
        assert get(url, http(folder, insecure_skip_verify=True, **inline)).body == b"a 1\n"
        with pytest.raises(ScrapeError):
            get(url, http(folder, insecure_skip_verify=True))


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        ({"cert_file": "cert.pem"}, "key_file: a certificate and its key must be set together"),
        ({"cert": "x", "cert_file": "cert.pem"}, "give it or cert_file, not both"),
        ({"cert": "not PEM", "key": "hidden"}, "ca_file, cert_file or key_file"),
    ],
)
def test_half_a_client_certificate_is_refused(folder: Path, tls: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        http(folder, **tls)
    assert "hidden" not in str(error.value)


def test_remote_write_over_tls(folder: Path) -> None:
    (folder / "http.yml").write_text("tls_config: {ca_file: cert.pem, server_name: node.example}\n")
    with secured(folder) as url:
        client = PostClient(url, load_http_config(folder / "http.yml"), 10)
        assert client.post(b"x", ()).status == 200
        client.close()
        stranger = PostClient(url, HttpConfig(), 10)
        with pytest.raises(OSError, match=r"(?i)certificate"):
            stranger.post(b"x", ())
