"""The build backend of sdist and wheel: builds the web page into the package, then calls setuptools.

So `pip install .` installs the program with its page. Node comes from PATH, else from PyPI as a build
requirement. An sdist contains the built page, so installing from one needs no Node.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import page  # in this folder: pip adds `backend-path` to the import path
from setuptools import build_meta

get_requires_for_build_editable = build_meta.get_requires_for_build_editable
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
build_editable = build_meta.build_editable


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
    return build_meta.build_wheel(directory, config_settings, metadata_directory)


def build_sdist(directory: str, config_settings: Any = None) -> str:
    _build_page()
    # setuptools reuses this file list of an earlier build, which does not contain a page built since.
    Path("src/gpuscope.egg-info/SOURCES.txt").unlink(missing_ok=True)
    return build_meta.build_sdist(directory, config_settings)
