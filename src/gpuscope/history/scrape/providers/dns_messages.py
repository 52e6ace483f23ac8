"""DNS messages (RFC 1035, 2782, 6891): encodes a question, decodes an answer.

Every offset of an answer comes from outside: a message that ends early, or whose compression pointers do not go
backwards, is a ValueError. Names are in presentation format with a final dot, as miekg/dns gives them to
Prometheus.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

TYPES = {"A": 1, "NS": 2, "CNAME": 5, "MX": 15, "AAAA": 28, "SRV": 33}
_TYPE_NAMES = {number: name for name, number in TYPES.items()}
_OPT, _INTERNET = 41, 1
_RECURSION_DESIRED, _RESPONSE, _TRUNCATED = 0x0100, 0x8000, 0x0200
UDP_PAYLOAD_BYTES = 4096
"""What the answer of a server that supports EDNS0 may have, as Prometheus asks for."""
_MAX_NAME_BYTES, _MAX_LABEL_BYTES = 255, 63
_ESCAPED = frozenset(b".()\";@\\' ")

SUCCESS, NAME_ERROR = 0, 3


@dataclass(frozen=True, slots=True)
class DnsRecord:
    record_type: str
    """A name in `TYPES`, or the number of another type."""
    target: str
    """An IP address, or a name."""
    port: int = 0


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    id: int
    code: int
    is_truncated: bool
    question: tuple[str, int]
    """Name in lower case, and type."""
    records: tuple[DnsRecord, ...] = ()


def encode_question(id_: int, name: str, record_type: str, *, with_edns: bool) -> bytes:
    header = struct.pack(">6H", id_, _RECURSION_DESIRED, 1, 0, 0, 1 if with_edns else 0)
    question = _encode_name(name) + struct.pack(">2H", TYPES[record_type], _INTERNET)
    edns = struct.pack(">BHHIH", 0, _OPT, UDP_PAYLOAD_BYTES, 0, 0) if with_edns else b""
    return header + question + edns


def _encode_name(name: str) -> bytes:
    labels = [label.encode("utf-8") for label in name.removesuffix(".").split(".")]
    if any(not 0 < len(label) <= _MAX_LABEL_BYTES for label in labels):
        raise ValueError(f"{name!r} is not a DNS name: each part must have 1 to {_MAX_LABEL_BYTES} bytes")
    encoded = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    if len(encoded) > _MAX_NAME_BYTES:
        raise ValueError(f"{name!r} is not a DNS name: it has more than {_MAX_NAME_BYTES} bytes")
    return encoded


def decode_answer(message: bytes) -> DnsAnswer:
    try:
        return _decode(message)
    except (struct.error, IndexError):
        raise ValueError("the DNS answer ends too early") from None


def _decode(message: bytes) -> DnsAnswer:
    id_, flags, questions, answers = struct.unpack_from(">4H", message)
    if not flags & _RESPONSE or questions != 1:
        raise ValueError("not an answer to one DNS question")
    name, at = _decode_name(message, 12)
    (record_type,) = struct.unpack_from(">H", message, at)
    at += 4
    is_truncated = bool(flags & _TRUNCATED)
    records = () if is_truncated else _decode_records(message, at, answers)
    return DnsAnswer(id_, flags & 0x000F, is_truncated, (name.lower(), record_type), records)


def _decode_records(message: bytes, at: int, count: int) -> tuple[DnsRecord, ...]:
    records = []
    for _ in range(count):  # at most 65,535; each takes bytes of the message
        _, at = _decode_name(message, at)
        record_type, _, _, length = struct.unpack_from(">2HIH", message, at)
        at += 10
        if at + length > len(message):
            raise ValueError("the DNS answer ends too early")
        records.append(_decode_record(message, at, length, record_type))
        at += length
    return tuple(records)


def _decode_record(message: bytes, at: int, length: int, record_type: int) -> DnsRecord:
    name = _TYPE_NAMES.get(record_type, str(record_type))
    if name in ("A", "AAAA"):
        if length != (4 if name == "A" else 16):
            raise ValueError(f"a DNS record of type {name} has {length} bytes")
        return DnsRecord(name, _address_text(message[at : at + length]))
    if name == "SRV":
        port = struct.unpack_from(">H", message, at + 4)[0]
        return DnsRecord(name, _decode_name(message, at + 6)[0], port)
    if name in ("MX", "NS"):
        return DnsRecord(name, _decode_name(message, at + (2 if name == "MX" else 0))[0])
    return DnsRecord(name, "")


def _address_text(packed: bytes) -> str:
    address = ipaddress.ip_address(packed)
    # Go writes an IPv4 address in an AAAA record as IPv4.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _decode_name(message: bytes, at: int) -> tuple[str, int]:
    """The name, and the offset after it."""
    labels: list[str] = []
    size, end = 0, -1
    while True:
        length = message[at]
        if length >= 0xC0:
            if end < 0:
                end = at + 2
            target = (length & 0x3F) << 8 | message[at + 1]
            # Pointers that only go backwards cannot form a loop.
            if target >= at:
                raise ValueError("a compressed DNS name does not point backwards")
            at = target
            continue
        if length > _MAX_LABEL_BYTES:
            raise ValueError("a DNS name has a part of an unknown kind")
        label = message[at + 1 : at + 1 + length]
        if len(label) < length:
            raise ValueError("the DNS answer ends too early")
        at += 1 + length
        size += 1 + length
        if size > _MAX_NAME_BYTES:
            raise ValueError(f"a DNS name has more than {_MAX_NAME_BYTES} bytes")
        if not length:
            return ".".join(labels) + ".", at if end < 0 else end
        labels.append("".join(map(_character, label)))


def _character(byte: int) -> str:
    if byte in _ESCAPED:
        return "\\" + chr(byte)
    return chr(byte) if 0x20 < byte < 0x7F else f"\\{byte:03d}"
