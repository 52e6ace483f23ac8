"""XIDs counted per GPU and code, each occurrence once, whichever way it came.

The same XID reaches us through the kernel log and through the driver's events. Two reports of one code on one
GPU through different channels within `SAME_EVENT_SECONDS` are one occurrence; two through the same channel are
two. The ledger can be kept in a file, so that a restarted agent neither forgets nor counts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuscope.readings import Device, XidEvent, XidTotal

SAME_EVENT_SECONDS = 10.0


class XidLedger:
    def add(self, events: Iterable[XidEvent]) -> None:
        raise NotImplementedError

    def totals(self, devices: Sequence[Device]) -> tuple[XidTotal, ...]:
        return ()
