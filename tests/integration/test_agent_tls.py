"""OpenSSL in the agent: loaded only where something needs it, and then it works."""

from __future__ import annotations

import ssl
import threading
import urllib.request
from pathlib import Path

from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import Agent, of_gpu, running_agent
from tests.local_server import QuietHandler, serving_http
from tests.server.certificates import make_certificate

__all__ = ["driver"]


def loaded_libraries(agent: Agent) -> str:
    return Path(f"/proc/{agent.process.pid}/maps").read_text()


def test_a_plain_agent_does_not_load_openssl(driver: FakeDriver) -> None:
    with running_agent(env=driver.env) as agent:
        agent.until(lambda series: of_gpu(series, "gpuscope_gpu_power_watts") is not None)
        libraries = loaded_libraries(agent)
    assert "libpython" in libraries or "/python" in libraries
    assert "libssl" not in libraries
    assert "libcrypto" not in libraries


def test_an_agent_with_a_certificate_answers_over_tls(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    config = tmp_path / "web.yml"
    config.write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n")
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with running_agent("--source", "demo", "--web-config-file", str(config)) as agent:
        assert agent.base.startswith("https://")
        url = agent.base.replace("127.0.0.1", "localhost") + "/-/healthy"
        with urllib.request.urlopen(url, timeout=30, context=trust) as answer:
            assert answer.read() == b"healthy\n"


def test_an_agent_without_a_certificate_sends_over_tls(tmp_path: Path) -> None:
    """asyncio was loaded without ssl; the sender, on blocking sockets, still has it."""
    received = threading.Event()

    class Receiver(QuietHandler):
        def do_POST(self) -> None:
            if self.read_body():
                received.set()
            self.answer(status=204)

    own = make_certificate(tmp_path)
    config = tmp_path / "http.yml"
    config.write_text(f"tls_config: {{ca_file: {tmp_path / 'cert.pem'}, server_name: localhost}}\n")
    with serving_http(Receiver, tls=own.server_context()) as port:
        url = f"https://127.0.0.1:{port}/api/v1/write"
        flags = ("--remote-write", url, "--remote-write-http-config", str(config))
        with running_agent("--source", "demo", *flags, "--remote-write-interval", "1s") as agent:
            assert agent.base.startswith("http://")
            assert received.wait(60), agent.log()
