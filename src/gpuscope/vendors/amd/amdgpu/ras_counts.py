"""Errors that the card's hardware has found (RAS), by the block in which they were: `ras/umc_err_count`.

Each file has a line for uncorrectable (`ue`), correctable (`ce`) and, for the memory, deferred (`de`) errors
since the driver was loaded. Pages of memory that are not used any more are in `ras/gpu_vram_bad_pages`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.drm.card_files import CardFiles, Fields

FOLDER: Final = "ras"
SUFFIX: Final = "_err_count"
BAD_PAGES: Final = "ras/gpu_vram_bad_pages"
MAX_BLOCKS: Final = 64
MAX_BAD_PAGE_BYTES: Final = 1 << 20

KINDS: Final = {"ue": "uncorrected", "ce": "corrected", "de": "deferred"}
PAGE_STATES: Final = {"R": "retired", "P": "pending", "F": "failed"}
"""Retired; to be retired when the process that uses it ends; could not be retired."""


def find_blocks(files: CardFiles) -> list[str]:
    """Blocks that are watched: umc, sdma, gfx, mmhub and others."""
    names = files.names(FOLDER)
    return [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)][:MAX_BLOCKS]


def parse_err_count(text: str) -> dict[str, int]:
    """By kind: `ue: 0` and `ce: 3` on lines of their own. Lines of another form are skipped."""
    counts = {}
    for line in text.splitlines():
        kind, _, count = line.partition(":")
        try:
            counts[KINDS[kind.strip()]] = int(count)
        except (KeyError, ValueError):
            continue
    return counts


def read_errors(files: CardFiles, blocks: list[str]) -> Fields:
    """A total is left out if a block that has such a count could not be read: it would seem to go back."""
    by_block: dict[tuple[str, str, str], float] = {}
    unread = False
    for block in blocks:
        name = f"{FOLDER}/{block}{SUFFIX}"
        text = files.text(name)
        counts = {} if text is ABSENT else parse_err_count(text)
        if text is not ABSENT and not counts:
            files.fail(name, "no counts in it")
        unread = unread or name in files.failures
        for kind, count in counts.items():
            by_block[kind, "volatile", block] = float(count)
    fields: Fields = {"ecc_location_errors": by_block}
    if not unread:
        totals: dict[tuple[str, str], float] = {}
        for (kind, lifetime, _), errors in by_block.items():
            totals[kind, lifetime] = totals.get((kind, lifetime), 0.0) + errors
        fields["ecc_errors"] = totals
    return fields


def parse_bad_pages(text: str) -> dict[str, float]:
    """`0x027f5d43 : 0x00001000 : R` on each line: address, size, state."""
    states = Counter(line.rpartition(":")[2].strip() for line in text.splitlines() if line.startswith("0x"))
    return {state: float(states[letter]) for letter, state in PAGE_STATES.items()}


def read_bad_pages(files: CardFiles) -> Maybe[dict[str, float]]:
    data = files.raw(BAD_PAGES, MAX_BAD_PAGE_BYTES, until_eof=True)
    return ABSENT if data is ABSENT else parse_bad_pages(data.decode("ascii", "replace"))
