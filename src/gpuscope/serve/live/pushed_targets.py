"""Nodes that send by remote write, as `/api/v1/targets` and the page's Settings › Targets show targets.

Input: the live picture. A node of it that is no target of the scraper, and that this process does not collect
itself, pushes, or another server's samples have it. It has no URL and no interval that this server knows, only
the time of its last sample.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from gpuscope.base.errors import GpuscopeError
from gpuscope.base.time_text import to_rfc3339
from gpuscope.serve.api_types.live_json import LiveNode, LivePicture


class PushedTargets:
    def __init__(self, newest_picture: Callable[[], Awaitable[LivePicture]]) -> None:
        self._newest_picture = newest_picture

    async def targets_json(self, instances: Collection[str]) -> list[dict[str, Any]]:
        """Without the nodes of `instances`, which are targets of another kind."""
        try:
            picture = await self._newest_picture()
        except GpuscopeError:  # the page has the reason, and the other targets are known without the picture
            return []
        return [_target_json(node) for node in picture["nodes"] if node["instance"] not in instances]


def _target_json(node: LiveNode) -> dict[str, Any]:
    last_sample = node["gone"]["since"] if "gone" in node else node.get("taken_at", 0.0)
    is_silent = "gone" in node or node["stale"]
    labels = {"job": node.get("job", ""), "instance": node["instance"]}
    return {
        "discoveredLabels": labels,
        "labels": labels,
        "scrapePool": labels["job"],
        "scrapeUrl": "",
        "globalUrl": "",
        "lastError": f"no sample since {to_rfc3339(last_sample)}" if is_silent else "",
        "lastScrape": to_rfc3339(last_sample),
        "lastScrapeDuration": 0,
        "health": "down" if is_silent else "up",
        "scrapeInterval": "",
        "scrapeTimeout": "",
    }
