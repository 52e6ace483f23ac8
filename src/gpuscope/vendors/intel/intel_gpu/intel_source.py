"""The source intel-gpu: every Intel GPU of this machine with its processes.

How cards are listed and read in tiers is in `vendors/drm/card_source.py`. Processes are known if those of all
users can be looked at; then the work of the clients is also the work of the card.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpuscope.model.readings import ABSENT, Process
from gpuscope.model.source import Tier
from gpuscope.vendors.drm.card_files import CallGuard
from gpuscope.vendors.drm.card_source import DRM_CLIENTS, DrmSource, ReadGpu
from gpuscope.vendors.drm.client_walk import ClientUse
from gpuscope.vendors.intel.intel_gpu.intel_cards import DRIVERS, IntelCard, list_intel_cards
from gpuscope.vendors.intel.intel_gpu.intel_device import VENDOR, IntelGpu
from gpuscope.vendors.intel.intel_gpu.intel_processes import engine_ratio, to_intel_processes


class IntelGpuSource(DrmSource[IntelCard, IntelGpu]):
    name = "intel-gpu"
    vendor = VENDOR
    drivers = DRIVERS

    def _list_cards(self) -> Sequence[IntelCard]:
        return list_intel_cards(self._roots.sysfs)

    def _is_integrated(self, card: IntelCard) -> bool:
        return card.is_integrated

    def _open_gpu(self, card: IntelCard, guard: CallGuard) -> IntelGpu:
        return IntelGpu(card, self._roots.rootfs, self._clock.monotonic, guard)

    def _collect(self, each: ReadGpu[IntelGpu]) -> None:
        address = each.gpu.card.address
        own = [use for use in self._known_uses() if use.client.pdev == address]
        each.gpu.engine_ratio = engine_ratio(own) if self._processes_are_known() else ABSENT
        super()._collect(each)

    # Processes

    def _read_users(self, due: frozenset[Tier]) -> None:
        self._forget_users()
        # The files of a client of xe wake the card, as its own do.
        sleeping = [each.gpu.card.device_files for each in self._gpus.values() if each.gpu.is_asleep]
        self._clients.asleep = frozenset().union(*sleeping)
        self._guarded(DRM_CLIENTS, partial(self._read_clients, due))

    def _known_uses(self) -> Sequence[ClientUse]:
        return () if self._client_uses is ABSENT else self._client_uses

    def _processes_are_known(self) -> bool:
        return self._machine.idle and self._client_uses is not ABSENT and self._clients.unreadable == 0

    def _make_processes(self) -> Sequence[Process]:
        uuids = {address: each.gpu.uuid for address, each in self._gpus.items()}
        integrated = [address for address, each in self._gpus.items() if each.gpu.is_integrated]
        return to_intel_processes(self._known_uses(), uuids, integrated)
