"""The build backend of sdist and wheel: builds the web page into the package, then calls setuptools.

So `pip install .` installs the program with its page. Node comes from PATH, else from PyPI as a build
requirement. An sdist contains the built page, so installing from one needs no Node. Wheels of the same sources
are equal byte by byte, whatever the folder, the umask and the time.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import page  # type: ignore[import-not-found]  # in this folder: pip adds `backend-path` to the import path
from setuptools import build_meta

get_requires_for_build_editable = build_meta.get_requires_for_build_editable

LONG_DESCRIPTION = Path("build/long_description.md")
"""What a package registry shows; pyproject.toml names this file."""
OLDEST_ZIP_TIME = 315532800  # 1980-01-01
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def long_description(readme: str, repository: str) -> str:
    """The README for a registry's page, where links to files of the repository lead nowhere.

    They become addresses below `repository`; without one, links become their text and images are left out."""
    if repository:
        base = repository.rstrip("/")
        return _LINK.sub(
            lambda link: f"{link[1]}[{link[2]}]({base}/{'raw' if link[1] else 'blob'}/HEAD/{link[3]})", readme
        )
    text = _LINK.sub(lambda link: "" if link[1] else f"{link[2]} (`{link[3]}`)", readme)
    return re.sub(r"\n{3,}", "\n\n", text) + "\nFiles named here are in the source distribution.\n"


def _write_long_description() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    LONG_DESCRIPTION.parent.mkdir(exist_ok=True)
    text = long_description(Path("README.md").read_text(), project.get("urls", {}).get("Repository", ""))
    LONG_DESCRIPTION.write_text(text)


def prepare_metadata_for_build_wheel(directory: str, config_settings: Any = None) -> str:
    _write_long_description()
    return str(build_meta.prepare_metadata_for_build_wheel(directory, config_settings))


def prepare_metadata_for_build_editable(directory: str, config_settings: Any = None) -> str:
    _write_long_description()
    return str(build_meta.prepare_metadata_for_build_editable(directory, config_settings))


def build_editable(directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    _write_long_description()
    return str(build_meta.build_editable(directory, config_settings, metadata_directory))


def make_reproducible(wheel: Path) -> None:
    """Sorted, with one time ($SOURCE_DATE_EPOCH) and one mode; setuptools takes both from the files."""
    seconds = max(OLDEST_ZIP_TIME, int(os.environ.get("SOURCE_DATE_EPOCH", OLDEST_ZIP_TIME)))
    fresh = wheel.with_name(f".{wheel.name}.new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(fresh, "w") as new:
        for name in sorted(old.namelist()):
            entry = zipfile.ZipInfo(name, time.gmtime(seconds)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix: the attributes hold a mode
            entry.external_attr = 0o100644 << 16
            new.writestr(entry, old.read(name))
    fresh.replace(wheel)


def _is_page_wanted() -> bool:
    return not os.environ.get("GPUSCOPE_WITHOUT_PAGE") and not page.is_built()


def _page_requirements() -> list[str]:
    return [page.WHEEL] if _is_page_wanted() and page.node_on_path() is None else []


def _build_page() -> None:
    if not _is_page_wanted():
        return
    npm = page.node_on_path() or page.node_in_environment()
    if npm is None or page.build(npm):
        sys.exit(
            "gpuscope: the web page could not be built (see the lines above); it needs Node and the npm "
            "registry. GPUSCOPE_WITHOUT_PAGE=1 builds a package without a page"
        )


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_page_requirements()]


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_page_requirements()]


def build_wheel(directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    _build_page()
    _write_long_description()
    shutil.rmtree("build/lib", ignore_errors=True)  # it would add modules that were deleted since
    name: str = build_meta.build_wheel(directory, config_settings, metadata_directory)
    make_reproducible(Path(directory) / name)
    return name


def build_sdist(directory: str, config_settings: Any = None) -> str:
    _build_page()
    _write_long_description()
    # setuptools reuses this file list of an earlier build, which does not contain a page built since.
    Path("src/gpuscope.egg-info/SOURCES.txt").unlink(missing_ok=True)
    return str(build_meta.build_sdist(directory, config_settings))
