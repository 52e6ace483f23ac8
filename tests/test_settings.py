from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_duration, parse_listen
from gpuscope.base.settings import load_settings, setting_rows
from gpuscope.cli import command_parser, read_settings
from gpuscope.demo.plan import DemoSettings


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "gpuscope.toml"
    file.write_text(
        'interval = "3s"\nnode = "from-file"\nseed = 7\nfull_commands = true\nfamilies = ["native"]\n'
    )
    environment = {"GPUSCOPE_INTERVAL": "2s", "GPUSCOPE_NODE": "from-environment"}
    settings = load_settings({"interval": "1500ms"}, environment, file)
    assert settings.interval == 1.5
    assert settings.node == "from-environment"
    assert settings.view(DemoSettings).seed == 7
    assert settings.full_commands is True
    assert settings.families == ("native",)
    assert settings.source == "auto"


@pytest.mark.parametrize(
    ("flags", "environment", "complaint"),
    [
        ({"interval": "fast"}, {}, "--interval: 'fast' is not a duration"),
        ({"interval": "1ms"}, {}, "shorter than 100ms"),
        ({}, {"GPUSCOPE_LISTEN": "here"}, "GPUSCOPE_LISTEN: 'here' is not HOST:PORT"),
        ({"source": "rocm"}, {}, "--source: 'rocm' is not one of auto, nvml"),
        ({"demo_gpus": "-1"}, {}, "--demo-gpus: '-1' is not a non-negative integer"),
    ],
)
def test_an_error_names_the_value_and_its_origin(
    flags: dict[str, str], environment: dict[str, str], complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(flags, environment)
    assert complaint in str(caught.value)


def test_a_settings_file_with_an_unknown_key_or_bad_syntax(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("intervall = 1\n")
    with pytest.raises(UsageError, match="unknown setting 'intervall'"):
        load_settings({}, {}, file)
    file.write_text("interval = \n")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_settings({}, {"GPUSCOPE_SETTINGS": str(file)})


def test_addresses() -> None:
    assert parse_listen(":9400") == ("", 9400)
    assert parse_listen("9400") == ("", 9400)
    assert parse_listen("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_listen("[::1]:9400") == ("::1", 9400)
    for wrong in ("host", "host:", ":99999", "a:b"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_listen(wrong)


def test_durations() -> None:
    assert [parse_duration(text) for text in ("250ms", "1m30s", "2", "1.5h")] == [0.25, 90.0, 2.0, 5400.0]


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= parse_duration(text) < float("inf")


def test_every_setting_has_a_help_text() -> None:
    for row in setting_rows():
        assert len(row.metadata["help"]) > 15, row.name
        assert callable(row.metadata["parse"]), row.name


def test_the_example_file_holds_the_defaults(tmp_path: Path) -> None:
    example = (Path(__file__).parent.parent / "docs/gpuscope.example.toml").read_text()
    settings = [line[1:] for line in example.splitlines() if re.match(r"#\w+ = ", line)]
    assert {line.split(" = ")[0] for line in settings} == {row.name for row in setting_rows()}
    file = tmp_path / "gpuscope.toml"
    file.write_text("\n".join(settings))
    loaded, plain = load_settings({}, {}, file), load_settings({}, {}, None)
    for row in setting_rows():
        if row.default is not None:  # where there is no default, the file shows an example
            assert getattr(loaded, row.name) == getattr(plain, row.name), row.name


@pytest.mark.parametrize(
    ("argv", "environment", "file"),
    [
        (["--scenario", "thermal", "--scenario", "xid79@+2m,ecc"], {}, ""),
        (["--scenario=thermal,xid79@+2m", "--scenario=ecc"], {}, 'scenario = "leak"'),
        ([], {"GPUSCOPE_SCENARIO": "thermal, xid79@+2m,ecc"}, ""),
        ([], {}, 'scenario = ["thermal", "xid79@+2m", "ecc"]'),
        ([], {}, 'scenario = "thermal,xid79@+2m,ecc"'),
    ],
)
def test_list_flags_are_repeatable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    environment: dict[str, str],
    file: str,
) -> None:
    """Regression: the last --scenario replaced the earlier ones."""
    path = tmp_path / "gpuscope.toml"
    path.write_text(file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    args = command_parser("up").parse_args([*argv, "--settings", str(path)])
    assert read_settings("up", args).view(DemoSettings).scenario == ("thermal", "xid79@+2m", "ecc")
