"""Titles and words of the dashboards in a language; English is in the tables themselves.

A text without a translation raises KeyError: `render` must not mix languages, and a test renders all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpuscope.serve.render.grafana.dashboard_table import Dashboard, DashboardPanel

ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "ko", "ja", "zh")
PAGE_TEXTS: Final = Path(__file__).parents[2] / "panel_texts"
SAME_IN_EVERY_LANGUAGE: Final = frozenset({"GPU", "GPUs", "SM", "slurmctld", "XIDs", "Value"})


@dataclass(frozen=True, slots=True)
class DashboardTexts:
    language: str = ENGLISH
    panels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dashboards: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def panel(self, panel: DashboardPanel) -> tuple[str, str]:
        """Title and help."""
        if self.language == ENGLISH:
            return panel.title, panel.help
        texts = self.panels[panel.id]
        return texts["title"], texts["help"]

    def dashboard(self, dashboard: Dashboard) -> tuple[str, str]:
        """Title and description."""
        if self.language == ENGLISH:
            return dashboard.title, dashboard.description
        texts = self.dashboards[dashboard.name]
        return texts["title"], texts["description"]

    def short_title(self, dashboard: Dashboard) -> str:
        return self.dashboard(dashboard)[0].partition(": ")[2]

    def word(self, english: str) -> str:
        if self.language == ENGLISH or english in SAME_IN_EVERY_LANGUAGE:
            return english
        return self.words[english]


def load_texts(language: str) -> DashboardTexts:
    if language == ENGLISH:
        return DashboardTexts()
    own = _read(Path(__file__).parent / f"{language}.json")
    return DashboardTexts(
        language, {**_read(PAGE_TEXTS / f"{language}.json"), **own["panels"]}, own["dashboards"], own["words"]
    )


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document
