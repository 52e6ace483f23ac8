"""Rule groups as a file defines them, after all checks, and when each is evaluated.

`expression` is the canonical text of the parsed expression: Prometheus evaluates, shows and links that text,
not the one in the file. Durations are nanoseconds, as evaluation times are. Groups are spread over their
interval by a hash of file and name: the same nanosecond as in a Prometheus with the same file path.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuscope.model.series import Labels

SECOND_NS = 1_000_000_000
_MASK = (1 << 64) - 1
_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_LONG = 255


def to_nanoseconds(seconds: float) -> int:
    """A clock's time; a float has microseconds at best."""
    return round(seconds * 1e6) * 1000


@dataclass(frozen=True, slots=True)
class RuleSpec:
    name: str
    """The alert's name, or the metric that a recording rule writes."""
    is_alert: bool
    expression: str
    labels: Labels = ()
    """Those of the group, overridden by those of the rule; an empty value removes the label."""
    annotations: Labels = ()
    for_ns: int = 0
    keep_firing_for_ns: int = 0
    line: int = field(default=0, compare=False)

    @property
    def key(self) -> tuple[str, Labels]:
        """Identifies the rule in its group over a reload or restart, except for duplicates."""
        return self.name, self.labels


@dataclass(frozen=True, slots=True)
class GroupSpec:
    name: str
    file: str
    """The path as configured and found: evaluation times depend on it."""
    interval_ns: int
    rules: tuple[RuleSpec, ...] = ()
    query_offset_ns: int | None = None
    limit: int = 0

    @property
    def key(self) -> str:
        """The value of the label `rule_group`."""
        return f"{self.file};{self.name}"


def xxhash64(data: bytes) -> int:
    length, at = len(data), 0
    if length >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at + 32 <= length:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], _word(data, at + 8 * lane, 8))
            at += 32
        turns = zip(lanes, (1, 7, 12, 18), strict=True)
        result = sum(_rotate(lane, turn) for lane, turn in turns) & _MASK
        for lane_value in lanes:
            result = ((result ^ _round(0, lane_value)) * _P1 + _P4) & _MASK
    else:
        result = _P5
    result = (result + length) & _MASK
    while at + 8 <= length:
        result = (_rotate(result ^ _round(0, _word(data, at, 8)), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= length:
        result = (_rotate(result ^ (_word(data, at, 4) * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        result = _rotate(result ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    return _mix(result)


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _rotate(value: int, count: int) -> int:
    return (value << count | value >> (64 - count)) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _mix(value: int) -> int:
    value = (value ^ value >> 33) * _P2 & _MASK
    value = (value ^ value >> 29) * _P3 & _MASK
    return value ^ value >> 32


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
