"""Whether a data folder holds a demo's history or a real one: a file in the folder says it, for good.

Numbers that were never measured must not end up in somebody's real history, nor real ones in a demo's. A folder
from before this file existed is a demo's if every agent in it said that it was simulated.
"""

from __future__ import annotations

from pathlib import Path

from gpuscope.atomic_write import PRIVATE, write_atomically
from gpuscope.series import Matcher, MatchOp
from gpuscope.store.store import Store
from gpuscope.store.store_errors import StoreError

KIND_FILE = "kind"
DEMO, REAL = "demo", "real"


class DataKindError(StoreError):
    """The folder holds the other kind of history."""


def claim_folder(store: Store, *, simulated: bool) -> None:
    """Notes the kind in a new folder; raises DataKindError if the folder is of the other one."""
    wanted = DEMO if simulated else REAL
    known = _read(store.folder / KIND_FILE) or _recognise(store)
    if known not in ("", wanted):
        raise DataKindError(_refusal(known))
    _write(store.folder / KIND_FILE, wanted)


def _refusal(known: str) -> str:
    if known == DEMO:
        return "the folder holds a demo's history, no number in it is real: choose another folder"
    return "the folder holds real history, which a demo must not add to: choose another folder"


def _read(path: Path) -> str:
    try:
        text = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    if text not in (DEMO, REAL):
        raise StoreError(f"{path} says {text[:40]!r}: write `{REAL}` or `{DEMO}` into it, whichever is true")
    return text


def _recognise(store: Store) -> str:
    """The kind of a folder from before there was a file; "" of an empty one."""
    agents = store.series([Matcher("__name__", MatchOp.EQUAL, "gpuscope_agent_info")])
    if not agents:
        return "" if store.stats().newest_ms is None else REAL
    return DEMO if all(("simulated", "true") in labels for labels in agents) else REAL


def _write(path: Path, kind: str) -> None:
    if _read(path) == kind:
        return
    try:
        write_atomically(path, f"{kind}\n".encode(), mode=PRIVATE)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
