"""Load GPUs with a known amount of work, and compare what the monitor shows with it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.errors import UsageError
from gpuscope.setting_values import parse_bytes, parse_positive_duration
from gpuscope.settings import Settings

SETTINGS = COLLECTING_SETTINGS

LOG_LEVEL = "error"

USAGE = "gpuscope load [--kind tensor] [--duration 45] [--gpus 0,1] [options]"

EPILOG = """examples:
  gpuscope load                                    tensor cores of every GPU for 45 s
  gpuscope load --kind memory --gpus 0 --duration 2m
  gpuscope load --target-util 60                   busy 60 % of the time
  gpuscope load -t 1004 -d 45                      dcgmproftester's own flags

Needs only the driver. Exit code 1 if the monitor disagrees with the load; 3 without a GPU.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from gpuscope.load.kinds import KINDS

    parser.add_argument("--kind", choices=sorted(KINDS), help="what the GPU does (default: tensor)")
    parser.add_argument(
        "--duration", "-d", metavar="45", default="45", help="how long, in seconds or as 2m (default: 45)"
    )
    parser.add_argument(
        "--gpus",
        "-i",
        metavar="0,1",
        default="",
        help="indices, UUIDs or MIG positions like 0_7_0 (default: all)",
    )
    parser.add_argument(
        "--target-util", metavar="60", default="100", help="percent of the time the GPU is busy (default: 100)"
    )
    parser.add_argument("--memory", metavar="20GiB", help="GPU memory to use")
    parser.add_argument("--force", action="store_true", help="load GPUs that somebody else uses, too")
    parser.add_argument("--json", action="store_true", help="the comparison as JSON, at the end")
    parser.add_argument("-t", metavar="1004", type=int, help="DCGM profiling field, as dcgmproftester's -t")
    parser.add_argument(
        "--no-dcgm-validation", action="store_true", help="do not compare; exit 0 if the load ran"
    )


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Kubernetes manifests for dcgmproftester have flag and value in one word: `-t 1004`."""
    words = [
        part
        for word in argv
        for part in (word.split(None, 1) if word.startswith("-") and " " in word.strip() else [word])
    ]
    return parser.parse_args([word.strip() for word in words])


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.load.device_process import DeviceLoad
    from gpuscope.load.gpu_selection import refuse_used, select_gpus
    from gpuscope.load.load_table import agrees, comparison_lines, header, second_line, to_json
    from gpuscope.wiring import run_agent
    from gpuscope.wiring.run_load import run_load

    kind = _kind(args)
    load = DeviceLoad(
        kind=kind.name,
        duration=_seconds(args.duration),
        target=_target(args.target_util),
        memory_bytes=_memory(args.memory),
    )
    settings = replace(settings, interval=1.0)
    running = run_agent.CollectorThreads(run_agent.build_collector(settings, ("native",)))
    running.start_workers()
    try:
        running.collector.tick()
        running.collector.finish_reading(run_agent.MAX_SECONDS_FOR_ONE_SHOT)
        snapshot = running.collector.snapshot
        run_agent.require_gpu(snapshot)
        gpus = select_gpus(snapshot, [name for name in args.gpus.split(",") if name])
        if len(gpus) < kind.gpus_needed:
            raise UsageError(f"--kind {kind.name} needs {kind.gpus_needed} GPUs; {len(gpus)} selected")
        if not args.force:
            refuse_used(snapshot, gpus, frozenset({os.getpid()}))
        if not args.json:
            print(f"{kind.summary}, {load.duration:.0f} s on GPU {', '.join(gpu.gpu for gpu in gpus)}")
            print(header(), flush=True)

        def show(elapsed: float, gpu: object, reading: object) -> None:
            if not args.json:
                print(second_line(elapsed, gpu, kind, reading), flush=True)  # type: ignore[arg-type]

        finished = run_load(running, gpus, load, show)
    finally:
        running.stop()
    if args.json:
        json.dump(to_json(gpus, kind), sys.stdout, indent=2)
        print()
    else:
        print("\n".join(comparison_lines(gpus, kind)))
    if not finished:
        return 130
    if args.no_dcgm_validation:
        return 1 if any(gpu.error for gpu in gpus) else 0
    return 0 if agrees(gpus, kind) else 1


def _kind(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    from gpuscope.load.kinds import KINDS, PROFTESTER_FIELDS, TENSOR

    if args.t is None:
        return KINDS[args.kind] if args.kind else TENSOR
    if args.kind:
        raise UsageError("-t and --kind both choose the load; give one")
    if args.t not in PROFTESTER_FIELDS:
        raise UsageError(f"-t {args.t}: no such profiling field; there are 1001 to 1012")
    return PROFTESTER_FIELDS[args.t]


def _seconds(text: str) -> float:
    try:
        return (
            float(text)
            if text.replace(".", "", 1).isdigit() and float(text) > 0
            else parse_positive_duration(text)
        )
    except ValueError as error:
        raise UsageError(f"--duration: {text!r} is {error}") from None


def _target(text: str) -> float:
    number = text.removesuffix("%")
    if not number.isdigit() or not 1 <= int(number) <= 100:
        raise UsageError(f"--target-util: {text!r} is not a whole number from 1 to 100")
    return int(number) / 100


def _memory(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"--memory: {text!r} is {error}") from None
