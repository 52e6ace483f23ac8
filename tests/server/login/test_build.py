"""The access policy built from settings, and settings refused before the start."""

from __future__ import annotations

from pathlib import Path

import bcrypt
import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import load_settings
from gpuscope.cli.wiring.login import address_text, build_web, in_container
from gpuscope.serve.login.user_file import UserFile
from tests.server.login.support import CHEAP_ROUNDS, PASSWORD

OUTSIDE, INSIDE = ("0.0.0.0", 9470), ("127.0.0.1", 9470)


@pytest.mark.parametrize(
    ("listen", "flags", "asks"),
    [
        (INSIDE, {}, False),
        (("::1", 9470), {}, False),
        (("localhost", 9470), {}, False),
        (INSIDE, {"login": "always"}, True),
        (INSIDE, {"proxy_auth_header": "X-User", "proxy_auth_from": "127.0.0.1"}, True),
        (OUTSIDE, {}, True),
        (("", 9470), {}, True),
        (("10.0.0.7", 9470), {"proxy_auth_from": "10.0.0.1"}, True),
    ],
)
def test_when_a_login_is_required(
    tmp_path: Path, listen: tuple[str, int], flags: dict[str, str], asks: bool
) -> None:
    web = build_web(load_settings({"data": str(tmp_path), **flags}, {}), listen)
    assert (web.access.authenticator is not None) == asks
    assert web.access.guard is None


def test_a_web_configuration_with_users_needs_no_other_login(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users:\n  ann: {bcrypt.hashpw(b'x', bcrypt.gensalt(4)).decode()}\n")
    web = build_web(load_settings({"data": str(tmp_path), "web_config_file": str(file)}, {}), OUTSIDE)
    assert web.access.guard is not None
    assert web.access.authenticator is None


def test_the_setup_token_is_logged_without_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings({"data": str(tmp_path)}, {})
    build_web(settings, OUTSIDE)
    assert "one-time token" in caplog.text
    assert ":9470" in caplog.text
    caplog.clear()
    UserFile(tmp_path, rounds=CHEAP_ROUNDS).add("ann", PASSWORD)
    build_web(settings, OUTSIDE)
    assert caplog.text == ""


def test_the_link_of_a_container_can_be_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own name is its id. A name in --external-url is also accepted in the Host header."""
    monkeypatch.setattr("socket.gethostname", lambda: "3f2a9c0d11aa")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    build_web(load_settings({"data": str(tmp_path)}, {}), OUTSIDE)
    assert "open http://localhost:9470 on the machine that publishes this container's port" in caplog.text
    assert "3f2a9c0d11aa" not in caplog.text
    caplog.clear()
    settings = load_settings({"data": str(tmp_path), "external_url": "https://gpus.example.org/x/"}, {})
    web = build_web(settings, OUTSIDE)
    assert "open https://gpus.example.org/x and create" in caplog.text
    assert web.access.hosts.allows("gpus.example.org:443")
    assert not web.access.hosts.allows("evil.example")


@pytest.mark.parametrize(
    ("mark", "environment", "is_one"),
    [
        (".dockerenv", {}, True),
        ("run/.containerenv", {}, True),
        ("etc", {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, True),
        ("etc", {"container": "lxc"}, False),
    ],
)
def test_what_a_container_is(tmp_path: Path, mark: str, environment: dict[str, str], is_one: bool) -> None:
    (tmp_path / mark).mkdir(parents=True)
    assert in_container(tmp_path, environment) == is_one


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"proxy_auth_header": "X-User"}, "--proxy-auth-header X-User: any client could send"),
        ({"proxy_auth_header": "X-User", "proxy_auth_from": "everybody"}, "'everybody' is not an address"),
        ({"data": "/dev/null/nowhere"}, "users.json: Not a directory"),
    ],
)
def test_a_wrong_setting_is_one_sentence_before_the_start(
    tmp_path: Path, flags: dict[str, str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        build_web(load_settings({"data": str(tmp_path), **flags}, {}), OUTSIDE)


def test_address_text() -> None:
    assert address_text(("::1", 80)) == "[::1]:80"
    assert address_text(INSIDE) == "127.0.0.1:9470"
    assert not address_text(OUTSIDE).startswith("0.0.0.0")
