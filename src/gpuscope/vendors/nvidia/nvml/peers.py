"""Whether a GPU can reach each other GPU over NVLink, as the driver's codes: 0 yes, 1 to 6 the reason why not.

Input: the machine's GPUs; output: a status by the other GPU's index. A pair whose call fails is left out. "GPU
is lost" does not tell which GPU of the pair is lost, so no GPU is marked lost here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from gpuscope.model.readings import Uuid
from gpuscope.model.readings.device import NO_VALUES
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls, GpuLostError

CALL: Final = "nvmlDeviceGetP2PStatus"
NVLINK: Final = ctypes.c_uint(2)  # NVML_P2P_CAPS_INDEX_NVLINK


class Peer(Protocol):
    @property
    def calls(self) -> DriverCalls: ...
    @property
    def index(self) -> int: ...
    @property
    def uuid(self) -> Uuid: ...
    @property
    def lost(self) -> bool: ...


class PeerStatuses:
    """One GPU's latest statuses, without peers that are lost."""

    def __init__(self, calls: DriverCalls) -> None:
        self._calls = calls
        self._statuses: dict[Peer, float] = {}
        self._by_index: Mapping[str, float] = NO_VALUES

    def read(self, gpus: Iterable[Peer]) -> None:
        statuses = {}
        for peer in gpus:
            if peer.calls is self._calls or peer.lost:
                continue
            with suppress(GpuLostError):
                status = ctypes.c_uint()  # not reused: a stuck call writes into it when it returns
                if self._read_status(peer, status):
                    statuses[peer] = float(status.value)
        self._keep(statuses)

    def _read_status(self, peer: Peer, status: ctypes.c_uint) -> bool:
        handles = (self._calls.handle, peer.calls.handle)
        return self._calls.run(CALL, *handles, NVLINK, ctypes.byref(status), qualifier=peer.uuid)

    def by_index(self) -> Mapping[str, float]:
        """Returns the same object until a status changes: metrics reuse the samples of an unchanged object."""
        if any(peer.lost for peer in self._statuses):
            self._keep({peer: status for peer, status in self._statuses.items() if not peer.lost})
        return self._by_index

    def _keep(self, statuses: dict[Peer, float]) -> None:
        self._statuses = statuses
        self._by_index = {str(peer.index): status for peer, status in statuses.items()} or NO_VALUES

    def clear(self) -> None:
        self._keep({})
