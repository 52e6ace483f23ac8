"""What an assistant can read beside the tools: the rules that run here, and what every metric means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import orjson

from gpuscope.agent.families.native.table import NATIVE_METRICS
from gpuscope.serve.mcp.own_api import Ask

MAX_RESOURCE_BYTES: Final = 512 << 10


@dataclass(frozen=True, slots=True)
class Resource:
    name: str
    description: str
    mime_type: str
    read: Callable[[Ask], Awaitable[str]]


async def read_resource(resource: Resource, ask: Ask) -> str:
    """Cut at `MAX_RESOURCE_BYTES`, which is said at its end."""
    content = await resource.read(ask)
    if len(content.encode()) <= MAX_RESOURCE_BYTES:
        return content
    return content.encode()[:MAX_RESOURCE_BYTES].decode("utf-8", "ignore") + "\n… cut; ask the API for the rest"


async def _rules(ask: Ask) -> str:
    answer = await ask("/api/v1/rules")
    return orjson.dumps(answer["data"], option=orjson.OPT_INDENT_2).decode()


async def _metrics(ask: Ask) -> str:
    lines = [f"- `{metric.name}` ({metric.type}): {metric.help}" for metric in NATIVE_METRICS]
    return "\n".join(["# Metrics of gpuscope's own family", "", *lines, ""])


RESOURCES: Final = {
    "gpuscope://rules": Resource(
        "Rules",
        "Alerting and recording rules that run on this server, with their state.",
        "application/json",
        _rules,
    ),
    "gpuscope://metrics": Resource(
        "Metrics", "What each metric of gpuscope's own family means.", "text/markdown", _metrics
    ),
}
