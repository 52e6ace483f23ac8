"""Show what is on this machine's GPUs now: each GPU, and who runs what on it."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.terminal import (
    BOLD,
    DIM,
    RED,
    YELLOW,
    bytes_text,
    duration_text,
    paint,
    printable,
    render_table,
    wants_colour,
)
from gpuscope.readings import ABSENT, Device, Maybe, Process, Snapshot
from gpuscope.settings import Settings

SETTINGS = ("interval", *COLLECTING_SETTINGS)

LOG_LEVEL = "warning"

EPILOG = """examples:
  gpuscope snapshot                       a table
  gpuscope snapshot --json | jq .devices  the same for machines; what is absent is left out
  gpuscope snapshot --watch               again each second, until Ctrl-C
"""

HEAD = (
    "GPU",
    "MODEL",
    "BUSY",
    "MEMORY",
    "POWER",
    "TEMP",
    "TYPE",
    "PID",
    "USER",
    "POD/JOB",
    "COMMAND",
    "HOLDS",
    "SM",
    "FOR",
)
RIGHT = ("BUSY", "MEMORY", "POWER", "TEMP", "PID", "HOLDS", "SM", "FOR")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="JSON for machines; with --watch one line each time"
    )
    parser.add_argument("--watch", action="store_true", help="show it again at every --interval until Ctrl-C")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope import wiring

    running = wiring.Running(wiring.build_collector(settings, ("native", "host") if args.json else ("native",)))
    if args.watch:
        return _watch(running, args.json, settings.interval)
    snapshot = wiring.read_once(running)
    _print(snapshot, args.json, indent=2)
    wiring.require_gpu(snapshot)
    return 0


def _watch(running: Any, as_json: bool, interval: float) -> int:
    running.start_workers()
    pause = threading.Event()
    try:
        while True:
            snapshot = running.collector.tick()
            if not as_json and sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")
            _print(snapshot, as_json, indent=None)
            sys.stdout.flush()
            pause.wait(interval)
    except KeyboardInterrupt:
        return 0
    finally:
        running.stop()


def _print(snapshot: Snapshot, as_json: bool, indent: int | None) -> None:
    if as_json:
        print(json.dumps(to_json(snapshot), indent=indent, ensure_ascii=True))
    else:
        print("\n".join(render(snapshot, wants_colour())))


def to_json(value: Any) -> Any:
    """Readings as JSON values: an absent one is left out, never null or 0."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: to_json(v) for name, v in pairs if v is not ABSENT and v != {} and v is not None}
    if isinstance(value, Mapping):
        return {".".join(k) if isinstance(k, tuple) else str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def render(snapshot: Snapshot, colour: bool) -> Iterator[str]:
    driver = _text(snapshot.driver.driver_version)
    title = f"{printable(snapshot.node)}  driver {driver}  {len(snapshot.devices)} GPUs"
    if snapshot.simulated:
        title += "  SIMULATED"
    yield paint(title, BOLD, colour)
    if snapshot.expected_gpus is not ABSENT and snapshot.expected_gpus > len(snapshot.devices):
        missing = (
            f"{len(snapshot.devices)} of {snapshot.expected_gpus} GPUs visible; `gpuscope doctor` says why"
        )
        yield paint(missing, YELLOW, colour)
    rows, lost = [], []
    for device in snapshot.devices:
        of_device = _processes_of(device, snapshot)
        for number, process in enumerate(of_device or [None]):
            rows.append(
                (
                    *(_device_cells(device) if number == 0 else ("",) * 6),
                    *_process_cells(process, device, snapshot),
                )
            )
            lost.append(device.lost)
    head, *lines = render_table(HEAD, rows, RIGHT)
    yield paint(head, DIM, colour)
    for line, is_lost in zip(lines, lost, strict=True):
        yield paint(line, RED, colour) if is_lost else line


def _processes_of(device: Device, snapshot: Snapshot) -> list[Process]:
    if snapshot.processes is ABSENT:
        return []
    mine = [process for process in snapshot.processes if process.gpu_uuid == device.uuid]
    return sorted(mine, key=lambda p: 0.0 if p.memory_bytes is ABSENT else -p.memory_bytes)


def _device_cells(device: Device) -> tuple[str, ...]:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    memory = "-" if used is ABSENT or total is ABSENT else f"{bytes_text(used)} / {bytes_text(total)}"
    temperature = device.temperature_celsius.get("gpu")
    return (
        str(device.index),
        printable(_text(device.model), 30) + (" LOST" if device.lost else ""),
        _percent(device.utilization_ratio),
        memory,
        "-" if device.power_watts is ABSENT else f"{device.power_watts:.0f} W",
        "-" if temperature is None else f"{temperature:.0f} °C",
    )


def _process_cells(process: Process | None, device: Device, snapshot: Snapshot) -> tuple[str, ...]:
    if process is None:
        idle = "" if snapshot.processes is ABSENT else "idle"
        return (idle, *("",) * 7)
    owner = process.owner
    where = "-"
    if owner.pod is not ABSENT:
        where = owner.pod if owner.namespace is ABSENT else f"{owner.namespace}/{owner.pod}"
    elif owner.job is not ABSENT:
        where = f"job {owner.job}"
    instances = {instance.uuid: instance for instance in device.instances}
    instance = None if process.instance_uuid is ABSENT else instances.get(process.instance_uuid)
    mig = f" {instance.gpu_instance}_{instance.compute_instance}" if instance else ""
    return (
        process.kind + mig,
        str(process.pid),
        printable(_text(owner.user), 20),
        printable(where, 40),
        printable(_text(process.command), 40),
        "-" if process.memory_bytes is ABSENT else bytes_text(process.memory_bytes),
        _percent(process.sm_ratio),
        "-" if process.started_at is ABSENT else duration_text(snapshot.taken_at - process.started_at),
    )


def _text(value: Maybe[str]) -> str:
    return "-" if value is ABSENT else value


def _percent(ratio: Maybe[float]) -> str:
    return "-" if ratio is ABSENT else f"{ratio * 100:.0f} %"
