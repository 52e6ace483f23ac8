"""List all fields: name, DCGM id, unit, the families that export it, and availability on this machine."""

from __future__ import annotations

import argparse
import json

from gpuscope.base.settings import Settings
from gpuscope.cli import COLLECTING_SETTINGS
from gpuscope.cli.output import DIM, paint, render_table, wants_colour

SETTINGS = COLLECTING_SETTINGS

LOG_LEVEL = "warning"

EPILOG = """examples:
  gpuscope fields                  all fields, like `dcgmi dmon -l`
  gpuscope fields clock --here     fields about clocks that this machine's GPUs have
  gpuscope fields --json           with the exact name in each family
To add a field to the dcgm_legacy family by id: gpuscope textfile --families dcgm_legacy --fields +191 …
"""

HEAD = ("FIELD", "SHORT", "ID", "UNIT", "HERE", "FAMILIES")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "word", nargs="?", default="", metavar="TEXT", help="only fields whose id or name contains this"
    )
    parser.add_argument("--here", action="store_true", help="only fields available on this machine")
    parser.add_argument("--json", action="store_true", help="JSON, with the exact name in each family")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from gpuscope.cli.wiring import run_agent as wiring
    from gpuscope.model.vendor import VendorField, vendor_fields

    snapshot = wiring.read_once(wiring.CollectorThreads(wiring.build_collector(settings, ("native",))))

    if args.here:
        wiring.require_gpu(snapshot)

    def has(field: VendorField) -> bool | None:
        """None if there is no GPU."""
        return field.is_here(snapshot) if snapshot.devices else None

    def matches(field: VendorField) -> bool:
        texts = (field.name, field.short_name, str(field.dcgm_id), *field.names.values())
        return any(args.word.lower() in text.lower() for text in texts)

    rows = [(field, has(field)) for field in vendor_fields() if matches(field)]
    if args.here:
        rows = [(field, here) for field, here in rows if here]
    if args.json:
        print(json.dumps([_to_json(field, here) for field, here in rows], indent=2))
        return 0
    words = {True: "yes", False: "no", None: "?"}
    cells = [
        (
            field.name,
            field.short_name,
            "" if field.dcgm_id is None else str(field.dcgm_id),
            field.unit,
            words[here],
            " ".join(field.names),
        )
        for field, here in rows
    ]
    head, *lines = render_table(HEAD, cells, ("ID",))
    print(paint(head, DIM, wants_colour()))
    print("\n".join(lines))
    return 0


def _to_json(field: object, here: bool | None) -> dict[str, object]:
    from dataclasses import asdict

    row: dict[str, object] = asdict(field)  # type: ignore[call-overload]
    return {**row, "here": here}
