"""Draws docs/img/snapshot.svg and docs/img/top.svg from the simulated fleet.

python -m tools.make_terminal_pictures
"""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gpuscope.base.clock import SystemClock
from gpuscope.cli.terminal.fleet_lines import render_snapshot
from gpuscope.cli.terminal.fleet_view import FleetView, to_fleet_view
from gpuscope.cli.terminal.spans import Look
from gpuscope.cli.terminal.top_app import TopApp
from gpuscope.cli.wiring.demo import build_demo
from gpuscope.cli.wiring.live_readers import OwnReader
from tests.fakes import make_settings

IMAGES = Path(__file__).parent.parent / "docs" / "img"
SCENARIOS = ("lost-gpu", "thermal")
READINGS = 40


def read_demo() -> list[FleetView]:
    """One node, one reading per simulated minute."""
    node = build_demo(make_settings(source="demo", demo_nodes=1, demo_gpus=8, scenario=SCENARIOS)).nodes[0]
    reader, composer, now = OwnReader(node.collector), node.build_composer(), SystemClock().now()
    times = [now + 60 * minute for minute in range(READINGS)]
    snapshots = [node.compose_past(composer, at, at - 60) for at in times]
    return [to_fleet_view(reader.to_picture(snapshot)) for snapshot in snapshots]


def write(name: str, svg: str) -> None:
    """Without rich's web fonts: a picture in our documents loads nothing from other sites."""
    (IMAGES / name).write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def draw_snapshot(view: FleetView) -> None:
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    for line in render_snapshot(view, Look(80)):
        console.print(Text.from_ansi(line), soft_wrap=True)
    write("snapshot.svg", console.export_svg(title="gpuscope snapshot"))


async def draw_top(views: list[FleetView]) -> None:
    app = TopApp()
    async with app.run_test(size=(110, 26)) as pilot:
        for view in views:
            app.post_message(TopApp.NewReading(view, {}))
            await pilot.pause()
        write("top.svg", app.export_screenshot(title="gpuscope top"))


def main() -> None:
    views = read_demo()
    draw_snapshot(views[-1])
    asyncio.run(draw_top(views))


if __name__ == "__main__":
    main()
