"""Folders list their entries in whatever order the file system likes: here, last ones first."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _backward_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    list_folder = os.listdir

    def list_backward(path: str = ".") -> list[str]:
        return sorted(list_folder(path), reverse=True)

    monkeypatch.setattr(os, "listdir", list_backward)
