"""The answer of `GET /api/reload`: whether the files that a server uses are the current ones."""

from __future__ import annotations

from typing import TypedDict


class ReloadedFilesJson(TypedDict):
    """Files that are read together; one mistake in them leaves the previous ones in use."""

    error: str
    """Why the last reload was refused: file, line and reason; empty if it was not."""
    loaded_at: float
    """When what is in use was read."""


class ReloadAnswer(TypedDict):
    """The last reload, at SIGHUP."""

    rules: ReloadedFilesJson
    """Configuration and rule files."""
    idle_policy: ReloadedFilesJson
    """The file of `--idle-policy`."""
    alerting: ReloadedFilesJson
    """The file of `--alerting`, or `--notify`."""
