"""Reads the events of `/api/live/stream` as a client does: a second, plain implementation beside the page's."""

from __future__ import annotations

import copy
from typing import Any

import orjson


def read_events(text: bytes) -> list[tuple[str, str, Any]]:
    """Name, id and data of each event; comments and `retry` are left out."""
    found = []
    for part in text.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in part.split(b"\n") if b": " in line)
        if b"data" in fields:
            found.append(
                (fields[b"event"].decode(), fields.get(b"id", b"").decode(), orjson.loads(fields[b"data"]))
            )
    return found


def apply_difference(columns: Any, picture: Any, change: Any) -> Any:
    new = copy.deepcopy(picture)
    for key in ("now", "taken_at", "counts", "left_out", "not_known", "targets"):
        if key in change:
            new[key] = change[key]
    for table in ("nodes", "gpus", "sessions", "jobs", "findings"):
        if table in change:
            _apply(new[table], change[table], columns.get(table, {}))
    return new


def _apply(rows: list[Any], change: Any, per_unit: dict[str, float]) -> None:
    for at in reversed(change.get("removed", [])):
        del rows[at]
    for one in change.get("added", []):
        rows.insert(one["at"], one["row"])
    for one in change.get("replaced", []):
        rows[one["at"]] = one["row"]
    for name, deltas in change.get("numbers", {}).items():
        far = iter(deltas.get("far", []))
        assert len(deltas["steps"]) == len(rows)
        for row, letter in zip(rows, deltas["steps"], strict=True):
            if letter == "~":
                value = next(far)
                row.pop(name, None)
                if value is not None:
                    row[name] = value / per_unit[name]
            elif letter != "O":
                steps = ord(letter) - ord("O") - (letter > "\\")
                row[name] = (round(row[name] * per_unit[name]) + steps) / per_unit[name]
        assert next(far, "end") == "end"
