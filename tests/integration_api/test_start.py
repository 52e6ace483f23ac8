"""What a server must not do: let anybody in from the network without a password, share a data folder."""

from __future__ import annotations

import base64
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import bcrypt
import pytest

from tests.engines import running
from tests.integration_api.servers import GPUSCOPE, ask, running_gpuscope
from tests.ports import free_port


def refusal(*arguments: str | Path) -> str:
    done = subprocess.run([*GPUSCOPE, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("over", [(), ("--store", "http://127.0.0.1:1")])
def test_off_this_machine_nobody_gets_in_unasked(over: tuple[str, ...], tmp_path: Path) -> None:
    port = free_port()
    command: list[str | Path] = [
        *GPUSCOPE,
        "server",
        "--listen",
        f"0.0.0.0:{port}",
        "--data",
        tmp_path / "data",
        *over,
    ]
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/-/ready"):
        for path in ("/api/v1/query?query=1", "/api/v1/series?match[]=up", "/federate?match[]=up", "/metrics"):
            assert ask(url, path).status == 401
        for path in ("/api/v1/query", "/api/v1/write"):
            assert ask(url, path, {"query": "1"}, post=True).status in (401, 403)


def test_with_a_web_config_it_starts_and_asks_for_the_password(tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    web.write_text(f"basic_auth_users:\n  ann: {hashed}\n")
    port = free_port()
    where = ("--listen", f"0.0.0.0:{port}", "--data", tmp_path / "data")
    command: list[str | Path] = [*GPUSCOPE, "server", *where, "--web-config-file", web]
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/-/ready"):
        for path in ("/api/v1/query?query=1", "/federate", "/metrics", "/"):
            assert ask(url, path).status == 401
        for password, status in (("secret", 200), ("guess", 401)):
            credentials = base64.b64encode(f"ann:{password}".encode()).decode()
            request = urllib.request.Request(
                f"{url}/api/v1/query?query=1", headers={"Authorization": f"Basic {credentials}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    found = answer.status
            except urllib.error.HTTPError as error:
                with error:
                    found = error.code
            assert found == status


def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    with running_gpuscope(tmp_path / "data") as first:
        said = refusal("server", "--listen", f"127.0.0.1:{free_port()}", "--data", tmp_path / "data")
        assert str(tmp_path / "data") in said
        assert ask(first, "/api/v1/query", {"query": "1"}).status == 200, "the first one goes on"
    with running_gpuscope(tmp_path / "data") as next_one:
        assert ask(next_one, "/api/v1/query", {"query": "1"}).status == 200, "free again"
