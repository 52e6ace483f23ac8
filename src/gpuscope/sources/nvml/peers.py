"""Whether a GPU can reach each other GPU over NVLink, as the driver's codes: 0 is yes, 1 to 6 say why not.

In goes the list of the machine's GPUs, out comes a status by the other's index. A pair that fails is left out
alone. "Lost" is said of the pair and does not tell which of the two is gone; so nobody is declared lost here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from gpuscope.readings import Uuid
from gpuscope.readings.device import NOTHING
from gpuscope.sources.nvml.driver_calls import Gate, GpuLostError

CALL: Final = "nvmlDeviceGetP2PStatus"
NVLINK: Final = ctypes.c_uint(2)  # NVML_P2P_CAPS_INDEX_NVLINK


class Peer(Protocol):
    @property
    def gate(self) -> Gate: ...
    @property
    def index(self) -> int: ...
    @property
    def uuid(self) -> Uuid: ...
    @property
    def lost(self) -> bool: ...


class PeerStatuses:
    """One GPU's latest statuses, without those of peers that were lost since."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._statuses: dict[Peer, float] = {}
        self._by_index: Mapping[str, float] = NOTHING

    def read(self, gpus: Iterable[Peer]) -> None:
        statuses = {}
        for peer in gpus:
            if peer.gate is self._gate or peer.lost:
                continue
            with suppress(GpuLostError):
                answer = ctypes.c_uint()  # each its own: a stuck call writes into it when it returns
                if self._ask(peer, answer):
                    statuses[peer] = float(answer.value)
        self._keep(statuses)

    def _ask(self, peer: Peer, answer: ctypes.c_uint) -> bool:
        handles = (self._gate.handle, peer.gate.handle)
        return self._gate.run(CALL, *handles, NVLINK, ctypes.byref(answer), about=peer.uuid)

    def by_index(self) -> Mapping[str, float]:
        """The same object until something changes: the metrics keep the samples they made of it."""
        if any(peer.lost for peer in self._statuses):
            self._keep({peer: status for peer, status in self._statuses.items() if not peer.lost})
        return self._by_index

    def _keep(self, statuses: dict[Peer, float]) -> None:
        self._statuses = statuses
        self._by_index = {str(peer.index): status for peer, status in statuses.items()} or NOTHING

    def clear(self) -> None:
        self._keep({})
