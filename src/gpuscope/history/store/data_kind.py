"""Records in a file whether a data folder holds demo or real history; a folder never changes its kind.

Simulated samples must not mix with measured ones. A folder written before this file existed is a demo folder if
every agent in it reported that it was simulated.
"""

from __future__ import annotations

from pathlib import Path

from gpuscope.base.files import PRIVATE, write_atomically
from gpuscope.history.store.store import Store
from gpuscope.history.store.store_errors import StoreError
from gpuscope.model.series import Matcher, MatchOp

KIND_FILE = "kind"
DEMO, REAL = "demo", "real"


class DataKindError(StoreError):
    """The folder holds the other kind of history."""


def claim_folder(store: Store, *, simulated: bool) -> None:
    """Write the kind into a new folder; raise DataKindError if the folder is of the other kind."""
    wanted = DEMO if simulated else REAL
    known = _read(store.folder / KIND_FILE) or _recognise(store)
    if known not in ("", wanted):
        raise DataKindError(_wrong_kind_message(known))
    _write(store.folder / KIND_FILE, wanted)


def _wrong_kind_message(known: str) -> str:
    if known == DEMO:
        return "the folder holds the simulated history of a demo: choose another folder"
    return "the folder holds real history, to which a demo must not write: choose another folder"


def _read(path: Path) -> str:
    try:
        text = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    if text not in (DEMO, REAL):
        raise StoreError(f"{path} contains {text[:40]!r}: write `{REAL}` or `{DEMO}` into it, as appropriate")
    return text


def _recognise(store: Store) -> str:
    """Return the kind of a folder that has no kind file; "" if the folder is empty."""
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
