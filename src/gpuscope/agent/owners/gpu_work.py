"""What work on a GPU is: the one meaning of working and idle, for states, accounts, reports and findings.

Work is use of the SMs or the graphics engine, of the video encoder and decoder, of the JPEG and optical flow
engines, and copies over PCIe. The driver does not report all of that by process: what the GPU does and no
process reports is the work of its only holder; of several holders it is not known whose it is. Under MIG
nothing is known by process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from gpuscope.model.readings import (
    ABSENT,
    Device,
    Instance,
    Maybe,
    Process,
    Uuid,
    compute_activity,
    unit_uuid,
)
from gpuscope.model.vendor import vendors

# Programs that belong to the machine and hold a GPU for others: display servers, daemons of the driver.
#
# A service never holds a GPU idle, and needs no allocation. It is recognised by its type (G: graphics only)
# or by the name of its program; a vendor's folder has those of its driver. A server that reports the work of
# its clients (NVIDIA's MPS) is a service, and its clients (type M) are ordinary holders.

GRAPHICS: Final = "G"
DISPLAY_SERVERS: Final = (
    "X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "mutter", "sway", "weston",
)  # fmt: skip
"""Newer ones compute too, and are of type C+G."""
WORK_SERVERS: Final = tuple(name for vendor in vendors().values() for name in vendor.work_servers)
DAEMONS: Final = tuple(
    sorted({"gpuscope", *(name for vendor in vendors().values() for name in vendor.services)})
)

_KERNEL_NAME_CHARACTERS: Final = 15  # where only /proc/PID/comm is known


def _pattern(*programs: str) -> str:
    """Of a name, a path, or a whole command line (`--full-commands`); anchored, for RE2 and Python.

    `[!-~]`, not `[^ ]`: Prometheus lists the characters of a class to see whether it is a small set, and parses
    a rule each time it evaluates it. A class of a million characters costs 2 ms of CPU in each selector.
    """
    names = dict.fromkeys(name for full in programs for name in (full, full[:_KERNEL_NAME_CHARACTERS]))
    return f"(?:[!-~]*/)?(?:{'|'.join(names)})(?: .*)?"


_SERVICE: Final = _pattern(*DISPLAY_SERVERS, *WORK_SERVERS, *DAEMONS)
_IS_SERVICE: Final = re.compile(_SERVICE)
_IS_WORK_SERVER: Final = re.compile(_pattern(*WORK_SERVERS))

SERVICE_MATCHERS: Final = f'type!="{GRAPHICS}",command!~"{_SERVICE}"'
"""PromQL: of the series of processes those that are no service."""


@lru_cache(maxsize=128)  # the programs of now: every run may have another name
def is_service_program(kind: str, command: str) -> bool:
    return kind == GRAPHICS or _IS_SERVICE.fullmatch(command) is not None


def is_service(process: Process) -> bool:
    return is_service_program(process.kind, _text(process.command))


@lru_cache(maxsize=128)
def _is_work_server(command: str) -> bool:
    return bool(WORK_SERVERS) and _IS_WORK_SERVER.fullmatch(command) is not None


def is_work_server(process: Process) -> bool:
    """Whether it reports the work of its clients."""
    return _is_work_server(_text(process.command))


def _text(command: Maybe[str]) -> str:
    return "" if command is ABSENT else command


WORKING_RATIO: Final = 0.01
"""A GPU or a process works from this share of an engine's time on: a desktop's blinking cursor uses less."""
MEANING_OF_WORK: Final = (
    "use of the SMs, the graphics engine, the video encoder or decoder, or the JPEG or optical flow engine for "
    f"{100 * WORKING_RATIO:g} % of the time or more, or copies over PCIe; display servers, MPS servers and "
    "daemons of the driver never hold a GPU idle"
)
IDLE_BYTES_PER_SECOND: Final = 2e6
"""Traffic over PCIe or links to other GPUs below this is that of the driver."""

_ENGINES: Final = (
    ("sm_ratio", "utilization_ratio"),
    ("encoder_ratio", "encoder_utilization_ratio"),
    ("decoder_ratio", "decoder_utilization_ratio"),
    ("jpeg_ratio", "jpeg_utilization_ratio"),
    ("ofa_ratio", "ofa_utilization_ratio"),
)
"""Of a process, and of the GPU."""


def reports_work(process: Process) -> Maybe[bool]:
    """Whether the driver reports work of this process; ABSENT where it does not report the SMs."""
    for ratio in (
        process.sm_ratio, process.encoder_ratio, process.decoder_ratio, process.jpeg_ratio, process.ofa_ratio,
    ):  # fmt: skip
        if ratio is not ABSENT and ratio >= WORKING_RATIO:
            return True
    return ABSENT if process.sm_ratio is ABSENT else False


def working(processes: Sequence[Process], devices: Sequence[Device]) -> list[Maybe[bool]]:
    """Whether each of these processes works now; ABSENT where that is not known."""
    works = [reports_work(process) for process in processes]
    if works.count(True) == len(works):  # as on most machines; nothing need be inferred
        return works
    whole_gpus = {device.uuid: device for device in devices if not device.instances}
    on: dict[Uuid, list[int]] = {}
    for place, process in enumerate(processes):
        on.setdefault(unit_uuid(process), []).append(place)
    for board in devices:
        for instance in board.instances:
            places = [place for place in on.get(instance.uuid, ()) if not is_service(processes[place])]
            if all(works[place] is ABSENT for place in places):
                _infer(works, places, _instance_works(instance))
    for uuid, places in on.items():
        device = whole_gpus.get(uuid)
        holders = [place for place in places if not is_service(processes[place])]
        if device is None or all(works[place] is True for place in holders):
            continue
        if _does_unreported_work(device, [processes[place] for place in places]):
            for place in holders:
                works[place] = True if len(holders) == 1 or works[place] is True else ABSENT
    return works


def _infer(works: list[Maybe[bool]], places: Sequence[int], unit_works: Maybe[bool]) -> None:
    """Where the driver reports no work by process, as under MIG: while the instance does nothing, none of its
    processes works; while it works, a sole one does, and of several it is not known which."""
    for place in places:
        if unit_works is False or (unit_works is True and len(places) == 1):
            works[place] = unit_works


def _instance_works(instance: Instance) -> Maybe[bool]:
    ratio = compute_activity(instance)
    return ABSENT if ratio is ABSENT else ratio >= WORKING_RATIO


def _does_unreported_work(device: Device, processes: Iterable[Process]) -> bool:
    # A server of NVIDIA's MPS reports the work of its clients.
    reporting = [process for process in processes if not is_work_server(process)]
    for of_process, of_device in _ENGINES:
        ratio = getattr(device, of_device)
        if ratio is not ABSENT and ratio >= WORKING_RATIO:
            reported = (getattr(process, of_process) for process in reporting)
            if sum(part for part in reported if part is not ABSENT) < WORKING_RATIO:
                return True
    return moves_data(device) and not any(reports_work(process) is True for process in reporting)


def moves_data(device: Device) -> bool:
    """Whether more data goes over PCIe than the driver's own."""
    return max(device.pcie_bytes_per_second.values(), default=0.0) >= IDLE_BYTES_PER_SECOND
