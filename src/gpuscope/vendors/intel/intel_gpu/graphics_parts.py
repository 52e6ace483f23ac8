"""The graphics parts of an Intel card (GT): their clocks, and why those are held back.

A card has one or more tiles, each with a part for rendering and compute and, on newer cards, one for video. xe
shows them as `tile0/gt0`, i915 as `gt/gt0` of the card, older kernels only the card as a whole. The clock of a
part that sleeps is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.drm.card_files import CardFiles
from gpuscope.vendors.intel.intel_gpu.intel_cards import XE, IntelCard

MEGAHERTZ: Final = 1e6
MAX_PARTS: Final = 16
GRAPHICS: Final = "graphics"
VIDEO: Final = "video"
STATUS: Final = "status"

_TILE: Final = re.compile(r"tile(\d+)", re.ASCII)
_GT: Final = re.compile(r"gt(\d+)", re.ASCII)
REASONS: Final = {
    **{
        name: name
        for name in (
            "prochot", "psys_crit", "thermal", "soc_thermal", "soc_avg_thermal", "mem_thermal", "vr_thermalert",
            "ratl", "psys_pl1", "psys_pl2", "vr_tdc", "iccmax", "fastvmode", "pl4", "pl2", "pl1", "p0_freq",
        )
    },
    "vr_thermal": "vr_thermalert",
}  # fmt: skip
"""The kernel's names -> ours; two of them are one reason."""


@dataclass(frozen=True, slots=True)
class ReasonFiles:
    status: str = ""
    """1 if any reason applies; empty on kernels without reasons."""
    reasons: tuple[tuple[str, str], ...] = ()
    """Our name of a reason, and its file."""


NO_REASONS: Final = ReasonFiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphicsPart:
    """Names of its files."""

    clock: str
    """graphics or video."""
    actual: str
    highest: str
    throttle: ReasonFiles = NO_REASONS


def find_parts(files: CardFiles, card: IntelCard) -> tuple[GraphicsPart, ...]:
    return tuple(_xe_parts(files) if card.driver == XE else _i915_parts(files, card))[:MAX_PARTS]


def tiles(files: CardFiles) -> list[str]:
    """Of xe; on a card without tiles of its own there is one."""
    return _numbered(files.names(), _TILE)


def _xe_parts(files: CardFiles) -> Iterable[GraphicsPart]:
    for tile in tiles(files):
        for place, name in enumerate(_numbered(files.names(tile), _GT)):
            folder = f"{tile}/{name}/freq0"
            throttle = f"{folder}/throttle"
            yield GraphicsPart(
                clock=VIDEO if place else GRAPHICS,
                actual=f"{folder}/act_freq",
                highest=f"{folder}/rp0_freq",
                throttle=_find_reasons(files.names(throttle), throttle, ""),
            )


def _i915_parts(files: CardFiles, card: IntelCard) -> Iterable[GraphicsPart]:
    if card.number is ABSENT:
        return
    own = f"drm/card{card.number}"
    names = _numbered(files.names(f"{own}/gt"), _GT)
    for place, name in enumerate(names):
        folder = f"{own}/gt/{name}"
        yield GraphicsPart(
            clock=VIDEO if place else GRAPHICS,
            actual=f"{folder}/rps_act_freq_mhz",
            highest=f"{folder}/rps_RP0_freq_mhz",
            throttle=_find_reasons(files.names(folder), folder, "throttle_reason_"),
        )
    if not names:
        yield GraphicsPart(clock=GRAPHICS, actual=f"{own}/gt_act_freq_mhz", highest=f"{own}/gt_RP0_freq_mhz")


def _find_reasons(names: Sequence[str], folder: str, start: str) -> ReasonFiles:
    """xe: `reason_pl1` and `status`; i915: `throttle_reason_pl1` and `throttle_reason_status`."""
    of_reasons = start or "reason_"
    reasons = tuple(
        (REASONS[reason], f"{folder}/{name}")
        for name in names
        if name.startswith(of_reasons) and (reason := name.removeprefix(of_reasons)) in REASONS
    )
    status = f"{start}{STATUS}"
    return ReasonFiles(f"{folder}/{status}", reasons) if status in names else NO_REASONS


def _numbered(names: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    """Those of this form, by their numbers: gt2 before gt10."""
    matched = [(int(match[1]), name) for name in names if (match := pattern.fullmatch(name))]
    return [name for _, name in sorted(matched)]


def read_part_clocks(files: CardFiles, parts: Iterable[GraphicsPart]) -> dict[str, float]:
    """The mean over the tiles of a card."""
    return _means((part.clock, files.scaled(part.actual, MEGAHERTZ)) for part in parts)


def read_highest_clocks(files: CardFiles, parts: Iterable[GraphicsPart]) -> dict[str, float]:
    return _means((part.clock, files.scaled(part.highest, MEGAHERTZ)) for part in parts)


def _means(values: Iterable[tuple[str, Maybe[float]]]) -> dict[str, float]:
    by_clock: dict[str, list[float]] = {}
    for clock, hertz in values:
        if hertz is not ABSENT:
            by_clock.setdefault(clock, []).append(hertz)
    return {clock: sum(each) / len(each) for clock, each in by_clock.items()}


def read_throttle_reasons(files: CardFiles, parts: Iterable[GraphicsPart]) -> dict[str, float]:
    """1 for a reason that applies to any part, 0 for one that does not. The files of the reasons are read only
    while the status says that there is one."""
    applying: dict[str, float] = {}
    for part in parts:
        status = files.number(part.throttle.status) if part.throttle.status else ABSENT
        if status is ABSENT:
            continue
        for reason, name in part.throttle.reasons:
            applies = files.number(name) if status else 0
            if applies is not ABSENT:
                applying[reason] = max(applying.get(reason, 0.0), 1.0 if applies else 0.0)
    return applying
