"""Explanations of typical YAML mistakes, and files that would use all memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.http_config import load_http_config
from gpuscope.base.yaml_file import MAX_NODES, MAX_YAML_BYTES, YamlMapping, load_yaml, parse_yaml
from gpuscope.history.scrape.config import load_config
from gpuscope.history.scrape.discovery import read_target_file

LAUGHS = "".join(
    f"{name}: &{name} [{', '.join(['*' + below] * 10)}]\n" for below, name in pairwise("abcdefghi")
)
MERGES = "".join(
    f"{name}: &{name} {{<<: [{', '.join(['*' + below] * 10)}]}}\n" for below, name in pairwise("abcdefghi")
)

TUTORIAL_WRONGLY_INDENTED = """\
global:
    scrape_interval: 15s

scrape_configs:
# Exporter of the machine
- job_name: 'machines'
    static_configs:
    - targets: ['a:9100', 'b:9100']
"""
TUTORIAL_MENDED_ONCE = """\
scrape_configs:
- job_name: 'gpus'
  static_configs:
  - targets: ['b:9400']
      labels:
      instance: 'b'
"""
TUTORIAL_MENDED_TWICE = TUTORIAL_MENDED_ONCE.replace("      labels", "    labels").replace(
    "      inst", "    inst"
)

SYNTAX = {
    "quoted value, then further in": (
        TUTORIAL_WRONGLY_INDENTED,
        "line 7, column 5: indented more than job_name in line 6, which already has a value; "
        "start it in column 3, below job_name",
    ),
    "list value, then further in": (
        TUTORIAL_MENDED_ONCE,
        "line 5, column 7: indented more than targets in line 4",
    ),
    "plain value, then further in": ("a: b\n  c: d\n", "line 2, column 3: indented more than a in line 1"),
    "no column of those above": (
        "a:\n    b: c\n  d: e\n",
        "line 3, column 3: this line starts in column 3, the lines",
    ),
    "tab": ("a:\n\tb: c\n", "line 2, column 1: a tab; indent with spaces"),
    "open quote": ("a:\n  b: 'x\n  c: d\n", "line 2, column 6: this quoted text has no closing quote"),
    "open bracket": ("a: [x, y\nb: c\n", "line 1, column 4: the closing ] of this list or mapping"),
    "open brace": ("a: {b: c\n", "line 1, column 4: the closing } of this list or mapping"),
    "no colon": ("a:\n  b 15s\n  c: d\n", "line 2, column 3: no ': ' after this key"),
    "no space after the colon": ("a:\n  b:15s\n  c: d\n", "line 2, column 3: no space after the ':'"),
    "no space after the dash": ("a:\n  -b: x\n   c: d\n", "line 2, column 3: no space after the '-'"),
    "two colons": ("a: b: c\n", "line 1, column 5: a second ': ' in this line; put the value in quotes"),
    "needs quotes": ("a: @x\n", "line 1, column 4: a text that starts with @ must be in quotes"),
    "star": ("a: *x\n", "line 1, column 4: * starts an alias"),
    "bang": ("a: !x y\n", "line 1, column 4: ! starts a tag"),
    "regex in double quotes": (
        'a: "\\d+"\n',
        "line 1, column 6: in double quotes a backslash starts an escape",
    ),
    "two documents": ("a: b\n---\nc: d\n", "line 2, column 1: a second document starts here"),
    "list beside keys": ("a: b\n- c\n", "line 2, column 1: a list entry beside the keys of a mapping"),
    "key twice": ("a: 1\nb: 2\na: 3\n", "line 3, column 1: the key a is also in line 1"),
    "control character": ("a: b\nc: \x07\n", "line 2, column 4: the character U+0007 is not allowed in YAML"),
    "key that is a list": ("? [a]\n: b\n", "line 1, column 3: a key that is not a text"),
    "deep": ("[" * 100, "nested more than 64 levels deep"),
    "an alias of itself": ("a: &x [*x]\n", "an alias that refers to itself"),
    "a billion laughs": (
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + LAUGHS,
        f"more than {MAX_NODES} keys and values",
    ),
    "a billion merges": ("a: &a {x: 1, y: 2}\n" + MERGES, f"more than {MAX_NODES} keys and values"),
    "a wrong tag": ("a: !!int 5\n", "line 1, column 4: ! starts a tag"),
    "another line break": ("a:\x85  b: c\n  d\n", "line"),
}


@pytest.mark.parametrize("case", [*SYNTAX])
def test_a_mistake_names_line_column_and_cause(case: str) -> None:
    text, expected = SYNTAX[case]
    with pytest.raises(UsageError) as raised:
        parse_yaml(text, "f.yml")
    said = str(raised.value)
    assert said.startswith(f"f.yml: {expected}") or (not expected.startswith("line") and expected in said)
    assert said.isprintable()


def test_valid_yaml_is_accepted() -> None:
    read = parse_yaml("# c\na: &x {b: 1.10, c: yes}\nd:\n- *x\n- {<<: *x, b: 2}\ne:\n'f': ~\n", "f.yml")
    assert read == {
        "a": {"b": "1.10", "c": "yes"},
        "d": [{"b": "1.10", "c": "yes"}, {"b": "2", "c": "yes"}],
        "e": None,
        "f": None,
    }
    assert isinstance(read, YamlMapping)
    assert read.places == {"a": (2, 1), "d": (3, 1), "e": (6, 1), "f": (7, 1)}
    assert parse_yaml("", "f.yml") is None
    for text in ("a: !!int", "a: !!int x", "a: 2020-99-99", "a: !!bool x", "{[a]: b}"):
        with pytest.raises(UsageError, match=r"f\.yml: "):
            parse_yaml(text, "f.yml", typed=True)
    assert parse_yaml("{a: 1.5, b: yes, c: 0x10}", "f.yml", typed=True) == {"a": 1.5, "b": True, "c": 16}


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.yml"
    path.write_bytes(b"#" * (MAX_YAML_BYTES + 1))
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        load_yaml(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TUTORIAL_MENDED_TWICE,
            "job 'gpus': static_configs[0]: instance: unknown key; indent it further if it "
            "belongs under labels, which is empty (line 6, column 5)",
        ),
        ("global:\n  scrape_intervall: 5s\n", "did you mean scrape_interval? (line 2, column 3)"),
        ("global: {scrape_interval: 5}\n", "'5' is not a duration such as 15s or 1m30s (line 1, column 10)"),
        (
            "scrape_configs:\n  job_name: a\n",
            "must be a list, not a mapping; put '- ' before the first key of each",
        ),
        (
            "scrape_configs:\n- job_name: a\n  static_configs:\n  - targets: b:1\n",
            "targets: must be a list, not a string; write [b:1] (line 4, column 5)",
        ),
        (
            "scrape_configs:\n- a\n",
            "scrape_configs: entry 1 must be a mapping, not a string (line 1, column 1)",
        ),
        ("global: [a]\n", "global: must be a mapping, not a list (line 1, column 1)"),
        (
            "scrape_configs: [{job_name: a, relabel_configs: [{regex: '(\t'}]}]\n",
            "missing ): (\\t (line 1, ",
        ),
        ("'\\e[2J\x1b': a\n", "is not allowed in YAML"),
        ('"\\e[2J": a\n', "'\\x1b[2J': unknown key"),
    ],
)
def test_a_mistake_in_a_configuration_has_its_place_too(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_config(path)
    said = str(raised.value)
    assert said.startswith(f"{path}: ")
    assert expected in said
    assert said.isprintable()


def test_every_yaml_file_error_has_its_position(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text("a: b\n  c: d\n")
    for load in (load_config, load_http_config, read_target_file):
        with pytest.raises(UsageError, match="line 2, column 3: indented more than a"):
            load(path)
    path.write_text("basic_auth:\n  user: x\n")
    with pytest.raises(UsageError, match=r"did you mean username\? \(line 2, column 3\)"):
        load_http_config(path)
    path.write_text("- targets: [a]\n  label: {}\n")
    with pytest.raises(UsageError, match=r"did you mean labels\? \(line 2, column 3\)"):
        read_target_file(path)
    path = tmp_path / "x.json"
    path.write_text('[\n {"targets" ["a"]}]')
    with pytest.raises(UsageError, match="line 2, column 13: Expecting ':' delimiter"):
        read_target_file(path)
