"""What a query wants to tell its reader beside the numbers: warnings and infos, each said once."""

from __future__ import annotations


class Notes:
    """Collects annotations in the order they first came up."""

    __slots__ = ("_infos", "_warnings")

    def __init__(self) -> None:
        self._warnings: dict[str, None] = {}
        self._infos: dict[str, None] = {}

    def warn(self, text: str) -> None:
        self._warnings[f"PromQL warning: {text}"] = None

    def info(self, text: str) -> None:
        self._infos[f"PromQL info: {text}"] = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    @property
    def infos(self) -> tuple[str, ...]:
        return tuple(self._infos)
