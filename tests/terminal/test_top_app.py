"""`gpuscope top` driven by textual's own pilot: keys, mouse, sizes, and what is shown when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from gpuscope.cli.terminal.fleet_view import ProcessRow, to_fleet_view
from gpuscope.cli.terminal.top_app import TopApp
from gpuscope.cli.terminal.top_dialogs import LineList, LineWidget
from gpuscope.cli.terminal.top_model import Ancestor
from tests.goldens import check_golden
from tests.terminal.scene import fleet, one_node

Script = Callable[[Pilot[int], TopApp], Awaitable[None]]


def drive(script: Script, *, size: tuple[int, int] = (80, 24), picture: Any = None, **options: Any) -> TopApp:
    """Runs the app without a terminal, gives it one reading, and then the script."""
    app = TopApp(**options)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            app.post_message(TopApp.NewReading(to_fleet_view(picture or one_node()), {}))
            await pilot.pause()
            await script(pilot, app)

    asyncio.run(run())
    return app


def screen(app: TopApp) -> list[str]:
    """The text of the lines of the topmost screen."""
    lines = [""] * app.size.height
    for widget in app.screen.query(LineWidget):
        for y in range(min(widget.size.height, app.size.height - widget.region.y)):
            text = "".join(segment.text for segment in widget.render_line(y))
            lines[widget.region.y + y] = text.rstrip()
    return lines


def without_clock(lines: list[str]) -> list[str]:
    return ["HH:MM:SS" + lines[0][8:], *lines[1:]]


def cursor_of(app: TopApp, name: str) -> int:
    return app.query_one(name, LineList).cursor


def process_lines(app: TopApp) -> list[str]:
    lines = screen(app)
    head = next(i for i, line in enumerate(lines) if "COMMAND" in line)
    return [line for line in lines[head + 1 : -1] if line]


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (120, 40), (200, 60)])
def test_one_node_as_a_whole(size: tuple[int, int]) -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        text = "\n".join(without_clock(screen(app))) + "\n"
        check_golden(Path(f"terminal/top-{size[0]}x{size[1]}.txt"), text.encode())

    drive(script, size=size)


def test_ascii_as_a_whole() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        text = "\n".join(without_clock(screen(app))) + "\n"
        assert text.isascii()
        check_golden(Path("terminal/top-ascii-80x24.txt"), text.encode())

    drive(script, unicode=False)


def test_before_the_first_reading_and_after_a_failure() -> None:
    app = TopApp()

    async def run() -> None:
        async with app.run_test() as pilot:
            await pilot.pause()
            assert any("reading" in line for line in screen(app))
            app.post_message(TopApp.FailedReading("cannot reach http://x: refused\x1b[2J"))
            await pilot.pause()
            assert any("cannot reach http://x: refused?[2J; trying again" in line for line in screen(app))
            app.post_message(TopApp.NewReading(to_fleet_view(one_node()), {}))
            await pilot.pause()
            assert not any("trying again" in line for line in screen(app))
            app.post_message(TopApp.FailedReading("away"))
            await pilot.pause()
            shown = "\n".join(screen(app))
            assert "away; trying again" in shown
            assert "alice" in shown, "the last numbers stay"

    asyncio.run(run())


def test_a_gpu_that_is_lost_while_it_is_shown() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        await pilot.press("tab", "enter")
        assert "state       busy" in "\n".join(screen(app))
        picture = one_node()
        lost = {key: picture["gpus"][0][key] for key in ("uuid", "gpu", "node", "model")}
        picture["gpus"][0] = {**lost, "state": "lost", "users": [], "processes": 0}
        app.post_message(TopApp.NewReading(to_fleet_view(picture), {}))
        await pilot.pause()
        assert "state       lost" in "\n".join(screen(app))
        picture["gpus"] = []
        app.post_message(TopApp.NewReading(to_fleet_view(picture), {}))
        await pilot.pause()
        await pilot.press("escape")
        assert "0 GPUs" in screen(app)[0]

    drive(script)


def test_no_gpu_says_why() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        view = replace(to_fleet_view(one_node()), gpus=(), processes=(), notes=("nvml: no driver",))
        app.post_message(TopApp.NewReading(view, {}))
        await pilot.pause()
        shown = screen(app)
        assert shown[1] == "no GPUs"
        assert "nvml: no driver" in shown

    drive(script)


def test_sorting_reversing_and_filtering() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        await pilot.press("M")
        assert "by memory" in "\n".join(screen(app))
        assert process_lines(app)[-1].startswith("5_7_0"), "the least memory last"
        await pilot.press("I")
        assert process_lines(app)[0].startswith("5_7_0")
        await pilot.press("f4", *"chidi", "enter")
        assert len(process_lines(app)) == 1
        await pilot.press("f4", *["backspace"] * 5, "enter")
        assert len(process_lines(app)) == 6
        await pilot.press("f4", *"x", "escape")
        assert len(process_lines(app)) == 6, "Escape changes nothing"
        await pilot.press("s", "S", "less_than_sign", "full_stop", "U", "T", "P")
        assert app.model.sort == "cpu"
        await pilot.press("I", "end", "u")
        assert len({line.split()[2] for line in process_lines(app)}) == 1
        await pilot.press("u")
        assert len(process_lines(app)) == 6

    drive(script)


def test_search_goes_round() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        await pilot.press("slash", *"python", "enter")
        first = cursor_of(app, "#processes")
        await pilot.press("n")
        assert cursor_of(app, "#processes") != first
        await pilot.press("N")
        assert cursor_of(app, "#processes") == first
        await pilot.press("f3", *["backspace"] * 6, *"nobody", "enter")
        assert "no process has 'nobody'" in "\n".join(screen(app))

    drive(script)


def test_pages() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        for key, text in (("question_mark", "send a signal"), ("f", "drain the node"), ("j", "no Slurm queue")):
            await pilot.press(key)
            await pilot.pause()
            assert text in "\n".join(screen(app)), key
            await pilot.press("escape")
        await pilot.press("enter")
        assert "process 4242 on gpu-a01" in "\n".join(screen(app))
        await pilot.press("q")
        assert len(app.screen_stack) == 1, "q closes the page, not the program"
        await pilot.press("tab", "g")
        assert len(process_lines(app)) == 2, "only GPU 0"
        await pilot.press("g")
        assert len(process_lines(app)) == 6

    drive(script, size=(80, 30))


def test_findings_of_a_server_that_has_none() -> None:
    picture = one_node()
    del picture["findings"]

    async def script(pilot: Pilot[int], app: TopApp) -> None:
        await pilot.press("f")
        assert "this server has no findings" in "\n".join(screen(app))

    drive(script, picture=picture)


def with_own(row: ProcessRow) -> ProcessRow:
    return replace(row, start_ticks=7, is_own=row.user == "alice", parent_pid=10)


def test_a_signal_needs_an_answer_and_an_own_process() -> None:
    sent: list[tuple[int, int]] = []

    def send(row: ProcessRow, number: int) -> str:
        sent.append((row.pid, number))
        return ""

    async def script(pilot: Pilot[int], app: TopApp) -> None:
        view = to_fleet_view(one_node())
        view = replace(view, processes=tuple(map(with_own, view.processes)))
        app.post_message(TopApp.NewReading(view, {10: Ancestor(10, 1, "alice", "torchrun")}))
        await pilot.pause()
        await pilot.press("k", "n")
        assert "no signal sent" in "\n".join(screen(app))
        await pilot.press("k")
        assert "process 4242 of alice" in "\n".join(screen(app))
        await pilot.press("y")
        assert sent == [(4242, 15)]
        assert "signal 15 sent to process 4242" in "\n".join(screen(app))
        await pilot.press("f9", "9")
        assert sent[-1] == (4242, 9)
        await pilot.press("down", "k")
        assert "process 4243 belongs to bjorn" in "\n".join(screen(app))
        await pilot.press("t")
        assert "└─ " in "\n".join(screen(app))
        assert "torchrun" in "\n".join(screen(app))

    drive(script, send_signal=send)


def test_no_signals_to_other_machines_and_in_readonly() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        await pilot.press("k")
        assert "is not on this machine" in "\n".join(screen(app))
        await pilot.press("t")
        assert "known only on their own machine" in "\n".join(screen(app))

    drive(script)

    async def readonly(pilot: Pilot[int], app: TopApp) -> None:
        await pilot.press("k")
        assert "--readonly" in "\n".join(screen(app))

    drive(readonly, no_signal_because="signals are switched off: --readonly")


def test_the_mouse() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        await pilot.click("#processes", offset=(5, 3))
        assert cursor_of(app, "#processes") == 2
        await pilot.click("#gpus", offset=(5, 2), times=2)
        await pilot.pause()
        assert "GPU 1 on gpu-a01" in "\n".join(screen(app))
        await pilot.press("escape")
        await pilot.click("#keys", offset=(3, 0))
        await pilot.pause()
        assert "Keys" in screen(app)[0], "the footer's Help"

    drive(script)


def test_a_thousand_gpus_scroll_and_keep_the_cursor() -> None:
    picture = fleet(125)

    async def script(pilot: Pilot[int], app: TopApp) -> None:
        assert "1000 GPUs" in screen(app)[0]
        await pilot.press("tab", "end")
        assert any("of 1000" in line and "gpu-124" not in line for line in screen(app))
        assert any("gpu-124 7" in line for line in screen(app))
        await pilot.press("pageup")
        chosen = cursor_of(app, "#gpus")
        picture["gpus"] = picture["gpus"][8:]  # a node goes
        app.post_message(TopApp.NewReading(to_fleet_view(picture), {}))
        await pilot.pause()
        assert cursor_of(app, "#gpus") == chosen - 8

    drive(script, size=(120, 40), picture=picture)


def test_resizing_down_and_up() -> None:
    async def script(pilot: Pilot[int], app: TopApp) -> None:
        before = without_clock(screen(app))
        for size in ((40, 10), (20, 6), (200, 60), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            await pilot.pause()
            assert all(len(line) <= size[0] for line in screen(app))
        assert without_clock(screen(app)) == before

    drive(script)


def test_pause() -> None:
    paused: list[bool] = []

    async def script(pilot: Pilot[int], app: TopApp) -> None:
        await pilot.press("space")
        assert "PAUSED" in "\n".join(screen(app))
        await pilot.press("z")

    drive(script, on_pause=paused.append)
    assert paused == [True, False]


def test_quitting() -> None:
    for key in ("q", "f10", "ctrl+c"):

        async def script(pilot: Pilot[int], app: TopApp, key: str = key) -> None:
            await pilot.press(key)

        assert drive(script).return_code == 0
