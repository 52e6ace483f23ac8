"""The answer of `POST /api/demo/load`, which only a demo has."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class LoadedGpuJson(TypedDict):
    """A simulated GPU under load."""

    gpu: str
    """nvidia-smi's index."""
    uuid: str
    model: NotRequired[str]
    bytes_per_second: NotRequired[float]
    """Of a load that copies: the simulated bytes, in both directions together."""


class DemoLoadAnswer(TypedDict):
    """A load that has begun."""

    node: str
    gpus: list[LoadedGpuJson]
    ends_at: float
    """Seconds since the epoch."""
