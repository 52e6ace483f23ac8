"""Go's `json.Marshal`: sorted keys, no spaces, and `<`, `>`, `&` escaped so that the text is safe in HTML."""

from __future__ import annotations

import json

from gpuscope.judge.rules.templates.go_format import DEFAULT_MAX_LENGTH, Room, float_text
from gpuscope.judge.rules.templates.go_time import GoDuration, GoTime
from gpuscope.judge.rules.templates.template_values import FunctionFailed, GoStruct, GoValue, go_type

MAX_NESTING = 100
_SAFE = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
    "\x7f": "\x7f",
}


def _string(text: str) -> str:
    quoted = json.dumps(str(text), ensure_ascii=False)
    return "".join(_SAFE.get(character, character) for character in quoted)


def _float(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        raise FunctionFailed(f"json: unsupported value: {float_text(value, 'g', None)}")
    size = abs(value)
    if size != 0 and (size < 1e-6 or size >= 1e21):
        text = float_text(value, "e", None)
        # e-09 becomes e-9
        return text[:-2] + text[-1] if len(text) >= 4 and text[-4:-2] == "e-" and text[-2] == "0" else text
    return float_text(value, "f", None)


def to_json(value: GoValue, max_length: int = DEFAULT_MAX_LENGTH) -> str:
    return _to_json(value, 0, Room(max_length))


def _to_json(value: GoValue, depth: int, room: Room) -> str:
    if isinstance(value, (list, dict, GoStruct)):
        room.take("")  # its elements are counted
        return _encode(value, depth, room)
    return room.take(_encode(value, depth, room))


def _encode(value: GoValue, depth: int, room: Room) -> str:
    if depth > MAX_NESTING:
        raise FunctionFailed("json: value is nested too deeply")
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, GoTime):
        return _string(value.format("2006-01-02T15:04:05.999999999Z07:00"))
    if isinstance(value, GoDuration):
        return str(value.nanoseconds)
    if isinstance(value, list):
        return f"[{','.join(_to_json(item, depth + 1, room) for item in value)}]"
    if isinstance(value, dict):
        pairs = (f"{_string(key)}:{_to_json(value[key], depth + 1, room)}" for key in sorted(value))
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, GoStruct):
        names = getattr(value, "JSON_NAMES", tuple(value.FIELDS))
        fields = zip(names, value.go_fields(), strict=True)
        return f"{{{','.join(f'{_string(name)}:{_to_json(item, depth + 1, room)}' for name, item in fields)}}}"
    raise FunctionFailed(f"json: unsupported type: {go_type(value)}")
