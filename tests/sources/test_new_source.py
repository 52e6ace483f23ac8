"""A new source is one package: in a copy of the program it gets its flag and its values with no other edit.

The source is the worked example of CONTRIBUTING.md, taken from there word for word.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    package = Path(gpuscope.__file__).parent
    shutil.copytree(package, folder / "gpuscope", ignore=shutil.ignore_patterns("page", "__pycache__"))
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    files = dict(re.findall(r"```python\n# (sources/my_source/\w+\.py)\n(.*?)```", text, re.DOTALL))
    assert files.keys() == {"sources/my_source/plan.py", "sources/my_source/__init__.py"}
    for name, content in files.items():
        path = folder / "gpuscope" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return folder


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "gpuscope", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=copy, timeout=120)


def test_its_settings_are_flags_and_its_values_are_served(copy: Path) -> None:
    shown = run(copy, "agent", "--once", "--source", "my-source", "--my-source-watts", "123.5")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r'gpuscope_gpu_power_watts\{gpu="0",uuid="GPU-1"\} 123\.5\n', shown.stdout)
    assert 'gpuscope_source_up{source="my-source"} 1' in shown.stdout


def test_its_flag_is_in_the_help_and_a_wrong_value_is_one_sentence(copy: Path) -> None:
    assert "--my-source-watts WATTS" in run(copy, "agent", "--help").stdout
    wrong = run(copy, "agent", "--once", "--source", "my-source", "--my-source-watts", "many")
    assert wrong.returncode == 2
    assert wrong.stderr == "gpuscope: --my-source-watts: 'many' is not a number of watts\n"


def test_the_program_itself_has_no_such_flag() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "agent", "--once", "--my-source-watts", "1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "unknown option --my-source-watts" in done.stderr
