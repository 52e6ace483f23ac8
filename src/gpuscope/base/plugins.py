"""Finds parts of the program by the folders they are in, so that a new one is registered by being there.

A part is a package with a certain file in it: a source has a `plan.py`, a family a `builder.py`. Parts of every
machine and of a vendor are in different folders, and each kind says in which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Plugin:
    name: str
    """That of its folder."""
    package: str
    file: Path


def find_plugins(patterns: Iterable[str]) -> dict[str, Plugin]:
    """By name; each pattern (`vendors/*/*/plan.py`) is a path below the package."""
    found = {}
    for pattern in patterns:
        for file in sorted(PACKAGE_FOLDER.glob(pattern)):
            folders = file.parent.relative_to(PACKAGE_FOLDER).parts
            found[folders[-1]] = Plugin(folders[-1], ".".join(("gpuscope", *folders)), file)
    return found
