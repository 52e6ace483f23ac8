"""Load GPUs with a known amount of work, and compare what the monitor shows with it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_argument, parse_bytes, parse_positive_duration
from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.server_client import add_server_arguments, read_json, request_json, token_of

if TYPE_CHECKING:
    from gpuscope.model.readings import Device, Instance
    from gpuscope.vendors.nvidia.load.comparison import LoadedGpu
    from gpuscope.vendors.nvidia.load.device_process import DeviceLoad
    from gpuscope.vendors.nvidia.load.kinds import Kind

SETTINGS = COLLECTING_SETTINGS

LOG_LEVEL = "error"

USAGE = "gpuscope load [--kind tensor] [--duration 45] [--gpus 0,1] [options]"

EPILOG = """examples:
  gpuscope load                                    tensor cores of every GPU for 45 s
  gpuscope load --kind memory --gpus 0 --duration 2m
  gpuscope load --target-util 60                   busy 60 % of the time
  gpuscope load -t 1004 -d 45                      dcgmproftester's own flags
  gpuscope load --simulate --server URL            on the simulated GPUs of `gpuscope up --demo`

Needs only the driver. Exit code 1 if the monitor disagrees with the load; 3 without a GPU.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from gpuscope.vendors.nvidia.load.kinds import KINDS

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
    parser.add_argument("--force", action="store_true", help="also load GPUs that other processes use")
    parser.add_argument("--json", action="store_true", help="the comparison as JSON, at the end")
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="load simulated GPUs of the demo at --server; --node selects the node (the first)",
    )
    add_server_arguments(parser)
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
    kind = _kind(args)
    seconds, target, memory = _seconds(args.duration), _target(args.target_util), _memory(args.memory)
    from gpuscope.vendors.nvidia.load.device_process import DeviceLoad

    load = DeviceLoad(kind=kind.name, duration=seconds, target=target, memory_bytes=memory)
    output = _Output(kind, as_json=args.json)
    if args.simulate:
        gpus, finished = _load_simulated(args, settings, load, output), True
    else:
        gpus, finished = _load_real(args, settings, load, output)
    output.print_comparison(gpus)
    if not finished:
        return 130
    if args.no_dcgm_validation:
        return 1 if any(gpu.error for gpu in gpus) else 0
    return 0 if output.agrees(gpus) else 1


def _load_real(
    args: argparse.Namespace, settings: Settings, load: DeviceLoad, output: _Output
) -> tuple[Sequence[LoadedGpu], bool]:
    from gpuscope.cli.wiring import run_agent
    from gpuscope.cli.wiring.run_load import run_load
    from gpuscope.vendors.nvidia.load.comparison import refuse_used, select_gpus

    collector = run_agent.build_collector(replace(settings, interval=1.0), ("native",))
    running = run_agent.CollectorThreads(collector)
    running.start_workers()
    try:
        collector.tick()
        collector.finish_reading(run_agent.MAX_SECONDS_FOR_ONE_SHOT)
        run_agent.require_gpu(collector.snapshot)
        gpus = select_gpus(collector.snapshot, _names(args))
        needed = output.kind.gpus_needed
        if len(gpus) < needed:
            raise UsageError(f"--kind {load.kind} needs {needed} GPUs; {len(gpus)} selected")
        if not args.force:
            refuse_used(collector.snapshot, gpus, frozenset({os.getpid()}))
        output.print_start(load, gpus)
        return gpus, run_load(running, gpus, load, output.print_second)
    finally:
        running.stop()


def _load_simulated(
    args: argparse.Namespace, settings: Settings, load: DeviceLoad, output: _Output
) -> Sequence[LoadedGpu]:
    from gpuscope.vendors.nvidia.load.comparison import TRAFFIC_QUERY, follow_demo_load, loaded_gpus

    body: dict[str, object] = {
        "kind": load.kind,
        "seconds": load.duration,
        "target": load.target,
        "gpus": _names(args),
    }
    body |= {"node": settings.node} if settings.node else {}
    body |= {"memory_bytes": load.memory_bytes} if load.memory_bytes is not None else {}
    token = token_of(args)
    gpus = loaded_gpus(request_json(args.server, "POST", "/api/demo/load", body, token=token))
    output.print_start(load, gpus)
    traffic_path = f"/api/v1/query?{urlencode({'query': TRAFFIC_QUERY})}"
    follow_demo_load(
        gpus,
        load,
        lambda: read_json(args.server, "/api/live", token=token),
        lambda: read_json(args.server, traffic_path, token=token),
        output.print_second,
        Event().wait,
    )
    return gpus


class _Output:
    """Lines as the load goes on, or one JSON document at its end."""

    def __init__(self, kind: Kind, *, as_json: bool) -> None:
        self.kind = kind
        self._as_json = as_json

    def print_start(self, load: DeviceLoad, gpus: Sequence[LoadedGpu]) -> None:
        from gpuscope.vendors.nvidia.load.load_table import header

        if not self._as_json:
            names = ", ".join(gpu.gpu for gpu in gpus)
            print(f"{self.kind.summary}, {load.duration:.0f} s on GPU {names}\n{header()}", flush=True)

    def print_second(self, elapsed: float, gpu: LoadedGpu, reading: Device | Instance | None) -> None:
        from gpuscope.vendors.nvidia.load.load_table import second_line

        if not self._as_json:
            print(second_line(elapsed, gpu, self.kind, reading), flush=True)

    def print_comparison(self, gpus: Sequence[LoadedGpu]) -> None:
        from gpuscope.vendors.nvidia.load.load_table import comparison_lines, to_json

        if self._as_json:
            print(json.dumps(to_json(gpus, self.kind), indent=2))
        else:
            print("\n".join(comparison_lines(gpus, self.kind)))

    def agrees(self, gpus: Sequence[LoadedGpu]) -> bool:
        from gpuscope.vendors.nvidia.load.load_table import agrees

        return agrees(gpus, self.kind)


def _names(args: argparse.Namespace) -> list[str]:
    return [name for name in args.gpus.split(",") if name]


def _kind(args: argparse.Namespace) -> Kind:
    from gpuscope.vendors.nvidia.load.kinds import KINDS, PROFTESTER_FIELDS, TENSOR

    if args.t is None:
        return KINDS[args.kind] if args.kind else TENSOR
    if args.kind:
        raise UsageError("-t and --kind both choose the load; give one")
    if args.t not in PROFTESTER_FIELDS:
        raise UsageError(f"-t {args.t}: no such profiling field; there are 1001 to 1012")
    return PROFTESTER_FIELDS[args.t]


def _seconds(text: str) -> float:
    return parse_argument(parse_positive_duration, text, "--duration", "45 or 2m")


def _target(text: str) -> float:
    number = text.removesuffix("%")
    if not number.isdigit() or not 1 <= int(number) <= 100:
        raise UsageError(f"--target-util: {text!r} is not a whole number from 1 to 100")
    return int(number) / 100


def _memory(text: str | None) -> int | None:
    return None if text is None else parse_argument(parse_bytes, text, "--memory", "4GiB")
