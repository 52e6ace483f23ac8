"""The package as users get it: sdist and wheel, installed into an empty environment without Node."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from email import message_from_bytes
from pathlib import Path

import pytest

from gpuscope import __version__

ROOT = Path(__file__).parent.parent


CONSTRAINTS = ROOT / "constraints.txt"


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def new_environment(folder: Path) -> Path:
    """Without a pip of its own: unpacking one takes longer than what is installed here."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder


def install(environment: Path, *packages: str | Path) -> list[str | Path]:
    """Only the modules that are then imported are compiled, not all."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", environment / "bin/python"]
    return [*pip, "install", "--quiet", "--no-compile", *packages]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it where there is no Node."""
    folder = tmp_path_factory.mktemp("packages")
    probe: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "-d",
        folder / "probe",
        "setuptools>=77",
    ]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("PyPI: not reachable from here")
    if not (ROOT / "src/gpuscope/serve/page/index.html").is_file():
        pytest.skip("Node: the page was not built on this machine")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT)
    sdist = next(folder.glob("*.tar.gz"))
    pip: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, sdist]
    run(*pip, PATH=without_node(folder))
    return folder


def without_node(folder: Path) -> str:
    """A PATH with nothing but what a build needs."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "env", "uname"):
        if not (tools / name).exists():
            (tools / name).symlink_to(f"/usr/bin/{name}")
    return str(tools)


def test_sdist_and_wheel_are_as_a_registry_wants_them(packages: Path, tmp_path: Path) -> None:
    files = [*packages.glob("*.tar.gz"), *packages.glob("*.whl")]
    assert len(files) == 2
    # In an environment of its own: twine needs twenty packages that nothing else here uses.
    run(*install(new_environment(tmp_path), "twine==6.2.0"))
    run(tmp_path / "bin/twine", "check", "--strict", *files)


def test_a_wheel_of_the_same_sources_is_the_same_byte_by_byte(packages: Path, tmp_path: Path) -> None:
    """In another folder, under another umask, from files of another time."""
    (sdist,) = packages.glob("*.tar.gz")
    (first,) = packages.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for path in source.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
            os.utime(path, (1_600_000_000, 1_600_000_000))
    before = os.umask(0o077)
    try:
        pip: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "-w",
            tmp_path,
            source,
        ]
        run(*pip, PATH=without_node(packages))
    finally:
        os.umask(before)
    (second,) = tmp_path.glob("*.whl")
    assert second.read_bytes() == first.read_bytes()


def test_the_metadata_has_no_link_that_leads_nowhere(packages: Path) -> None:
    with zipfile.ZipFile(next(packages.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(wheel.read(name))
    assert metadata["Author"] == "the gpuscope authors"
    assert "Operating System :: POSIX :: Linux" in metadata.get_all("Classifier", [])
    text = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith(("http://", "https://", "#"))] == []
    assert "one server (`docs/guides/one-server.md`)" in text


def test_links_of_the_readme_follow_the_address_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    long_description = importlib.import_module("build_backend").long_description
    readme = "[a](docs/a.md) ![p](docs/p.png) [b](https://b.example) [c](#c)\n"
    there = "https://git.example/gpuscope"
    assert long_description(readme, f"{there}/") == (
        f"[a]({there}/blob/HEAD/docs/a.md) ![p]({there}/raw/HEAD/docs/p.png) [b](https://b.example) [c](#c)\n"
    )
    assert long_description(readme, "").startswith("a (`docs/a.md`)  [b](https://b.example) [c](#c)\n")


@contextmanager
def running(command: Path, *arguments: str, path: str) -> Iterator[str]:
    """The URL of a server that was started on a port of its own choice."""
    environment = {"PATH": path, "HOME": str(command.parent)}
    with subprocess.Popen([command, *arguments], env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"http://\S+", line):
                    yield found[0]
                    return
            raise AssertionError("it ended without saying where it is")
        finally:
            process.terminate()


def demo(command: Path, data: Path, path: str) -> AbstractContextManager[str]:
    arguments = ("up", "--demo", "--demo-nodes", "1", "--listen", "127.0.0.1:0", "--data", str(data))
    return running(command, *arguments, path=path)


def assert_page_is_served(url: str) -> None:
    with urllib.request.urlopen(url, timeout=60) as answer:
        page = answer.read().decode()
    scripts = re.findall(r'(?:src|href)="\./(assets/[^"]+\.js)"', page)
    assert scripts, page
    size = 0
    for script in scripts:
        with urllib.request.urlopen(f"{url}/{script}", timeout=60) as answer:
            assert answer.headers["content-type"].startswith("text/javascript")
            size += len(answer.read())
    assert size > 10_000


def test_a_wheel_in_an_empty_environment_serves_the_page(packages: Path, tmp_path: Path) -> None:
    wheel = next(packages.glob("*.whl"))
    run(*install(new_environment(tmp_path / "venv"), "-c", CONSTRAINTS, wheel))
    command = tmp_path / "venv/bin/gpuscope"
    assert run(command, "--version").strip() == f"gpuscope {__version__}"
    assert f"-{__version__}-" in wheel.name
    with demo(command, tmp_path / "data", path=without_node(tmp_path)) as url:
        assert_page_is_served(url)
    licences = list((tmp_path / "venv").rglob("gpuscope-*.dist-info/licenses/*"))
    assert {path.name for path in licences} == {"LICENSE", "NOTICE"}
    assert list((tmp_path / "venv").rglob("site-packages/gpuscope/serve/render/panels.json"))
    assert_files_are_rendered(command, tmp_path / "rendered")


def assert_files_are_rendered(command: Path, folder: Path) -> None:
    """What `render` writes is in the package; in a checkout it is a link."""
    run(command, "render", "compose", "--language", "ko", "--out", folder / "compose")
    run(command, "render", "rules", "--out", folder)
    run(command, "render", "systemd", "--out", folder / "units")
    assert (folder / "compose/compose.yaml").read_text() == (ROOT / "deploy/compose/compose.yaml").read_text()
    assert len(list((folder / "compose/grafana/dashboards").iterdir())) == 8
    assert list((folder / "rules").iterdir())
    assert len(list((folder / "units").iterdir())) == len(list((ROOT / "deploy/systemd").iterdir()))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with pipx and uv."""
    folder = tmp_path_factory.mktemp("tools")
    command = install(new_environment(folder), "pipx==1.8.0", "uv==0.9.9")
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("pipx and uv: not to be had from PyPI here")
    return folder / "bin"


@pytest.mark.slow
def test_pipx_installs_a_wheel(packages: Path, tools: Path, tmp_path: Path) -> None:
    wheel = next(packages.glob("*.whl"))
    run(
        *(tools / "pipx", "install", "--python", sys.executable, f"--pip-args=-c {CONSTRAINTS}", wheel),
        PIPX_HOME=str(tmp_path / "home"),
        PIPX_BIN_DIR=str(tmp_path / "bin"),
        PIPX_MAN_DIR=str(tmp_path / "man"),
    )
    assert run(tmp_path / "bin/gpuscope", "--version").strip() == f"gpuscope {__version__}"
    with demo(tmp_path / "bin/gpuscope", tmp_path / "data", path=without_node(tmp_path)) as url:
        assert_page_is_served(url)


@pytest.mark.slow
def test_uvx_runs_a_wheel(packages: Path, tools: Path, tmp_path: Path) -> None:
    wheel = next(packages.glob("*.whl"))
    environment = {
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
        **configured_index(),
    }
    command = (tools / "uvx", "--constraints", CONSTRAINTS, "--from", wheel, "gpuscope", "--version")
    assert run(*command, **environment).strip() == f"gpuscope {__version__}"


def configured_index() -> dict[str, str]:
    """pip's index for uv, which does not read pip's configuration; nothing if pip has its default."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    url = os.environ.get("PIP_INDEX_URL") or found
    return {"UV_DEFAULT_INDEX": url} if url else {}
