"""Files that a user names: a pipe, a device, a folder or a huge file is refused at once with one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.files import check_regular_file, read_regular_file, read_regular_text
from gpuscope.base.http_config import load_http_config
from gpuscope.base.settings import read_settings_file
from gpuscope.history.scrape.config import load_config
from gpuscope.history.scrape.discovery import read_target_file
from gpuscope.judge.notify.alerting_config import load_alerting
from gpuscope.judge.notify.channel import SecretText, SendError
from gpuscope.judge.notify.channels import load_messages
from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.rule_file import load_rule_file
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.serve.web_config import load_web_config
from gpuscope.vendors.nvidia.families.dcgm.counters_csv import load_counters

Kind = Callable[[Path], Path]


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def huge(path: Path) -> Path:
    path.touch()
    os.truncate(path, 1 << 40)
    return path


KINDS: dict[Kind, str] = {
    pipe: "it is a named pipe and not a regular file",
    device: "it is a device and not a regular file",
    folder: "it is a folder",
    huge: "it is larger than ",
}


def read_template(path: Path) -> object:
    return load_messages([path])


def http_config_with(text: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        config = path.with_name("http.yml")
        config.write_text(text.replace("FILE", str(path)))
        return load_http_config(config)

    return read


def web_config_with(text: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        config = path.with_name("web.yml")
        config.write_text(text.replace("FILE", str(path)))
        return load_web_config(config)

    return read


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "rule file": ("x.yml", lambda path: load_rule_file(str(path), SECOND_NS, load_templates())),
    "alerting file": ("x.yml", load_alerting),
    "template": ("x.tmpl", read_template),
    "scrape configuration": ("x.yml", load_config),
    "targets in YAML": ("x.yml", read_target_file),
    "targets in JSON": ("x.json", read_target_file),
    "counters": ("x.csv", lambda path: load_counters(str(path))),
    "settings": ("x.toml", read_settings_file),
    "web configuration": ("x.yml", load_web_config),
    "certificate of the server": ("x", web_config_with("tls_server_config: {cert_file: FILE, key_file: FILE}")),
    "password file": ("x", http_config_with("basic_auth: {username: u, password_file: FILE}")),
    "header file": ("x", http_config_with("http_headers: {X-A: {files: [FILE]}}")),
    "authority": ("x", http_config_with("tls_config: {ca_file: FILE}")),
    "client certificate": ("x", http_config_with("tls_config: {cert_file: FILE, key_file: FILE}")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_only_a_regular_file_of_limited_size_is_read(reader: str, kind: Kind, tmp_path: Path) -> None:
    name, read = READERS[reader]
    path = kind(tmp_path / name)
    with pytest.raises(UsageError) as refused:
        read(path)
    message = str(refused.value)
    assert KINDS[kind] in message
    assert name in message
    assert "\n" not in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_file_of_a_channel_fails_its_message_only(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(SendError, match=KINDS[kind]):
        SecretText(path=kind(tmp_path / "x")).reveal()


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a\r\n\xc3\xa9\r")
    assert read_regular_file(path) == b"a\r\n\xc3\xa9\r"
    assert read_regular_text(path) == path.read_text("utf-8") == "a\n\u00e9\n"
    assert read_regular_file(path, 6) == path.read_bytes()
    with pytest.raises(OSError, match="larger than"):
        read_regular_file(path, 5)
    assert check_regular_file(path) == path
