"""What a query wants to tell its reader beside the numbers: warnings and infos, each said once."""

from __future__ import annotations

from gpuscope.promql.frame import Floats
from gpuscope.promql.numeric import number_text


class Notes:
    """Collects annotations in the order they first came up."""

    __slots__ = ("_infos", "_warnings")

    def __init__(self) -> None:
        self._warnings: dict[str, None] = {}
        self._infos: dict[str, None] = {}

    def warn(self, text: str) -> None:
        self._warnings[f"PromQL warning: {text}"] = None

    def warn_of_quantiles(self, ranks: Floats) -> None:
        """A quantile outside [0, 1] has an answer, but hardly the one that was meant."""
        outside = ranks[~((ranks >= 0) & (ranks <= 1))]
        if outside.size:
            self.warn(f"quantile value should be between 0 and 1, got {number_text(float(outside[0]))}")

    def info(self, text: str) -> None:
        self._infos[f"PromQL info: {text}"] = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    @property
    def infos(self) -> tuple[str, ...]:
        return tuple(self._infos)
