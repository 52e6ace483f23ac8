"""Helpers of tests that run dashboards' queries: agents to scrape, queries filled in as Grafana does."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.cli.test_commands import running as running_command

RATE_INTERVAL, RANGE = "15s", "1h"


def port_of(url: str) -> str:
    return url.rsplit(":", 1)[1].split("/")[0]


def ask(base: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
        return json.loads(answer.read())["data"]


def count(base: str, expr: str) -> int:
    return len(ask(base, "query", query=expr)["result"])


@contextmanager
def running_agent(*options: str, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Its address; a stand-in, whose own flags name one, has an empty `listen`."""
    argv = ("--listen", listen, *options) if listen else options
    with running_command("agent", *argv, until=r" on (http://\S+)/metrics") as (_, found):
        yield found[1]


def fill(expr: str, values: Mapping[str, str]) -> str:
    """As Grafana fills variables in."""
    names = {**values, "__rate_interval": RATE_INTERVAL, "__range": RANGE}
    return re.sub(r"\$\{?(\w+)\}?", lambda found: names.get(found[1], found[0]), expr)


def queries_of(document: Any) -> Iterator[tuple[str, str]]:
    """Title and expression of every target, also inside rows, and of annotations."""
    for panel in document["panels"]:
        inner = panel.get("panels") or []
        for one in (panel, *inner):
            for target in one.get("targets", ()):
                if target.get("expr"):
                    yield str(one.get("title", "")), target["expr"]
    for annotation in document.get("annotations", {}).get("list", ()):
        if annotation.get("expr"):
            yield f"annotation {annotation['name']}", annotation["expr"]
