"""The answer of `GET /api/links`: other programs that the page links to."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class LinksAnswer(TypedDict):
    """Addresses as the reader's browser reaches them."""

    grafana: NotRequired[str]
    """Grafana with the dashboards of `gpuscope render grafana`; absent without `--grafana-url`."""
