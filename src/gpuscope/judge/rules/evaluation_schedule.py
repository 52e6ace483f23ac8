"""When a rule group is evaluated: the same nanosecond as in a Prometheus with the same file path.

Groups are spread over their interval by a hash of file and name, so that many groups do not run at once.
"""

from __future__ import annotations

from gpuscope.judge.rules.rule_spec import GroupSpec
from gpuscope.judge.rules.xxhash64 import xxhash64

_LONG = 255


def group_offset_ns(spec: GroupSpec) -> int:
    """The group's offset within its interval."""
    pairs = (("file", spec.file), ("name", spec.name))
    return xxhash64(b"".join(map(_sized, (text for pair in pairs for text in pair)))) % spec.interval_ns


def _sized(text: str) -> bytes:
    """A string as in Prometheus' label sets: its length in one byte, or 0xFF and three bytes."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) < _LONG:
        return bytes((len(data),)) + data
    return b"\xff" + len(data).to_bytes(3, "little") + data


def first_slot_ns(spec: GroupSpec, now_ns: int) -> int:
    """The first evaluation after a start at `now_ns`."""
    since_slot = (now_ns - group_offset_ns(spec)) % spec.interval_ns
    return now_ns - since_slot + spec.interval_ns


def missed_slots(last_slot_ns: int, now_ns: int, interval_ns: int) -> int:
    """How many evaluations a tick at `now_ns` skips: those whose time passed while the last one ran."""
    return max(0, (now_ns - last_slot_ns) // interval_ns - 1)
