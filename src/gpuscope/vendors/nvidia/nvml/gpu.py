"""One GPU over time: identity, latest values of each tier, MIG instances and processes.

Jobs of its runner make the calls. While a job runs, only the job may use this object; while the runner is idle,
only the source may. A lost GPU keeps only its identity and is read again at every reading: when it answers, it
has recovered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from gpuscope.model.readings import ABSENT, Device, Maybe, Uuid
from gpuscope.model.readings.device import NO_VALUES
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import make_device
from gpuscope.vendors.nvidia.nvml import call_table as rows
from gpuscope.vendors.nvidia.nvml import nvml_fields as fields
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCall, DriverCalls, GpuLostError
from gpuscope.vendors.nvidia.nvml.identity import NvmlInstance, find_instances, read_identity
from gpuscope.vendors.nvidia.nvml.nvml_fields import TierReader
from gpuscope.vendors.nvidia.nvml.process_list import FoundProcesses, ProcessLists, ProcessShares
from gpuscope.vendors.nvidia.nvml.profiling import GpmRequest, Profiler, UtilizationSamples, supports_gpm
from gpuscope.vendors.nvidia.nvml.tiers import P2P_STATUS, Clocks

# Whether a GPU can reach each other GPU over NVLink, as the driver's codes: 0 yes, 1 to 6 the reason why not.
#
# Input: the machine's GPUs; output: a status by the other GPU's index. A pair whose call fails is left out.
# "GPU is lost" does not tell which GPU of the pair is lost, so no GPU is marked lost here.

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


REPROBE_SECONDS: Final = 300.0  # after this time refused calls are made again
_MAX_FANS: Final = 16
_MAX_LINKS: Final = 72
_MIG_MODE: Final[DriverCall] = ("nvmlDeviceGetMigMode", ())


class NvmlGpu:
    def __init__(self, calls: DriverCalls, index: int, uuid: Uuid, clocks: Clocks) -> None:
        self.calls = calls
        self.runner = calls.runner
        self.index = index
        self.uuid = uuid
        self.lost = False
        self.identity: dict[str, Any] = {}
        self.processes: Maybe[list[FoundProcesses]] = ABSENT
        # Used by the source only: what it reports for this GPU, since when, and which tiers are not read yet.
        self.device: Device | None = None
        self.answered_at = clocks.monotonic()
        self.overdue: frozenset[Tier] = frozenset()
        self.failing: dict[str, int] = {}
        self._clocks = clocks
        self._gpm = GpmRequest(calls.library)
        self._peers_tier = calls.library.tier_plan.tier_of(Tier.SLOW, [(P2P_STATUS, None)])
        self._reader: TierReader | None = None
        self._probed_at = clocks.monotonic()
        self._returned_calls = 0  # stuck calls that had returned at the last probe
        self._identified = False  # whether every identity call succeeded or was refused
        self._has_gpm: bool | None = None
        self.profilers: dict[int | None, Profiler] = {}  # by GPU instance; None is the whole GPU
        self._profiled: dict[int | None, dict[str, Any]] = {}
        self._instances: list[NvmlInstance] = []
        self._mig_enabled: Maybe[float] = ABSENT
        self.samples = UtilizationSamples(calls, clocks)
        self._shares = ProcessShares(calls, clocks)
        self._busy: dict[str, Any] = {}
        self._peers = PeerStatuses(calls)
        self._lists = ProcessLists(calls.library)
        self._unknown_processes: set[Uuid] = set()  # of instances
        self._failing_in: dict[Tier, frozenset[str]] = {}

    def continue_from(self, previous: NvmlGpu) -> None:
        """Continues the state of the same GPU in the previous session."""
        self.samples.continue_from(previous.samples)

    def move_to(self, index: int) -> None:
        self.index = index
        self.runner.name = self.calls.device_name = f"GPU {index}"

    def pids(self) -> list[int]:
        return [] if self.processes is ABSENT else [pid for part in self.processes for pid in part.running]

    def reprobe_if_due(self, due: frozenset[Tier]) -> None:
        """Probes the GPU again at intervals, and after a stuck call, which may have been part of the probe."""
        if self.runner.has_stuck_calls:
            return  # values of a call that is stuck now would be lost
        long_ago = self._clocks.monotonic() - self._probed_at >= REPROBE_SECONDS
        if self.runner.returned != self._returned_calls or (Tier.MEDIUM in due and long_ago):
            self.reprobe()

    # Jobs

    def read_tiers(
        self, tiers: Iterable[Tier], due: frozenset[Tier], peers: Iterable[Peer], with_processes: bool
    ) -> None:
        """Reads the tiers that are due or were never read."""
        for tier in tiers:
            if tier in due or self.has_not_read(tier):
                before = dict(self.runner.failures)
                self.read(tier)
                if tier is self._peers_tier and not self.lost:
                    self._peers.read(peers)
                if tier in due:
                    now = self.runner.failures.items()
                    self._failing_in[tier] = frozenset(name for name, n in now if n > before.get(name, 0))
        if with_processes:
            self.processes = self._read_processes()

    def read(self, tier: Tier) -> None:
        if self.lost and tier is not Tier.FAST:
            return
        try:
            self._read(tier)
            if self.lost:
                self._mark_recovered()
        except GpuLostError:
            self._mark_lost()

    def take_failures(self, due: frozenset[Tier]) -> dict[str, int]:
        """Failures since the last call; with count 0, those of the last reading of tiers that are not due."""
        failed = dict(self.runner.failures)
        self.runner.failures.clear()
        for tier, names in self._failing_in.items():
            if tier not in due:
                for name in names:
                    failed.setdefault(name, 0)
        return failed

    def has_not_read(self, tier: Tier) -> bool:
        """Whether this tier was not read yet, or not since the GPU recovered."""
        return self._reader is None or self._reader.has_not_read(tier)

    def _read(self, tier: Tier) -> None:
        reader = self._reader or self._probe()
        if tier is Tier.MEDIUM and not self._identified:
            self._identify()
        values = reader.read(tier)
        if tier is Tier.FAST:
            self._read_busy()
            self._look_for_instances(values.get("mig_enabled", ABSENT))
        for instance in self._instances:
            instance.read(tier)
        if tier is Tier.MEDIUM or not all(instance.answers for instance in self._instances):
            self._find_instances()
        if tier is Tier.FAST:
            self._profile()

    def _identify(self) -> None:
        failed_before = self.runner.failures.total()
        self.identity = {**self.identity, **read_identity(self.calls)}
        self._identified = self.runner.failures.total() == failed_before and not self.runner.has_stuck_calls

    def _probe(self) -> TierReader:
        self._identify()
        fans = self.calls.result(("nvmlDeviceGetNumFans", ()))
        fans = 0 if fans is ABSENT else min(fans, _MAX_FANS)
        links = min(fields.link_count(self.calls), _MAX_LINKS)
        self._reader = TierReader(
            self.calls,
            (*rows.DEVICE_ROWS, *rows.fan_rows(fans), *rows.nvlink_rows(links)),
            {
                Tier.FAST: fields.FAST_FIELDS,
                Tier.MEDIUM: (
                    *fields.MEDIUM_FIELDS,
                    *fields.throttle_time_fields(self.calls.library.driver_version),
                    *fields.nvlink_fields(links),
                ),
                Tier.SLOW: (*fields.SLOW_FIELDS, *fields.nvlink_5_fields(links)),
            },
        )
        return self._reader

    def _read_busy(self) -> None:
        mean, seconds = self.samples.read()
        self._busy = {"utilization_mean_ratio": mean, "busy_seconds": seconds}

    def _look_for_instances(self, mig_enabled: Maybe[float]) -> None:
        if self.calls.is_stuck(_MIG_MODE):
            return  # keep the known instances
        if mig_enabled != self._mig_enabled:
            if self._mig_enabled is not ABSENT:
                self.retry_refused()  # MIG mode changes which calls a GPU refuses
            self._mig_enabled = mig_enabled
            self._find_instances()

    def _find_instances(self) -> None:
        if self._mig_enabled is ABSENT or not self._mig_enabled:
            self._instances = []
        else:
            before = self._instances
            self._instances = find_instances(self.calls, before)
            for instance in self._instances:
                if instance not in before:
                    instance.read(Tier.FAST)

    def _profile(self) -> None:
        if self._has_gpm is None:
            self._has_gpm = supports_gpm(self.calls)  # called again after a stuck call has returned
        if not self._has_gpm:
            return
        wanted: list[int | None] = [None, *dict.fromkeys(each.gpu_instance for each in self._instances)]
        for gone in [key for key in self.profilers if key not in wanted]:
            self.profilers.pop(gone).close()
        for key in wanted:
            if key not in self.profilers:
                self.profilers[key] = Profiler(self.calls, self._gpm, key, self._clocks)
        self._profiled = {key: profiler.read() for key, profiler in self.profilers.items()}

    def _mark_lost(self) -> None:
        self.lost = True
        self._mig_enabled = ABSENT
        self._instances = []
        self._busy = {}
        self._peers.clear()
        if self._reader is not None:
            self._reader.clear()
        self._close_profilers()

    def _mark_recovered(self) -> None:
        self.lost = False
        self.retry_refused()

    def reprobe(self) -> None:
        """Probes the GPU again at the next reading: identity, fans, links, supported calls."""
        self._probed_at = self._clocks.monotonic()
        self._returned_calls = self.runner.returned
        self.retry_refused()
        self._reader = None

    def retry_refused(self) -> None:
        """Allows refused calls again."""
        self._has_gpm = None
        if self._reader is not None:
            self._reader.retry_refused()
        for instance in self._instances:
            instance.retry_refused()

    def _read_processes(self) -> Maybe[list[FoundProcesses]]:
        """Processes by instance; ABSENT if the driver does not list them."""
        if self.lost:
            return ABSENT
        # A stuck call writes into its buffer when it returns, so that buffer must not be reused.
        lists = ProcessLists(self.calls.library) if self.runner.has_stuck_calls else self._lists
        try:
            if self._mig_enabled is not ABSENT and self._mig_enabled:
                return self._instance_processes(lists)
            found = lists.read(self.calls)
            return ABSENT if found is ABSENT else [FoundProcesses(found, self._shares.read())]
        except GpuLostError:
            self._mark_lost()
            return ABSENT

    def _instance_processes(self, lists: ProcessLists) -> Maybe[list[FoundProcesses]]:
        # For the whole GPU the driver lists them to root only; for each instance it lists them to every user.
        processes: list[FoundProcesses] = []
        self._unknown_processes = set()
        answered = not self._instances
        for instance in self._instances:
            try:
                found = lists.read(instance.calls)
            except GpuLostError:
                continue  # the instance was destroyed meanwhile
            if found is not ABSENT:
                answered = True
                processes.append(FoundProcesses(found, ABSENT, instance.uuid))
            else:
                self._unknown_processes.add(instance.uuid)
        return processes if answered else ABSENT

    def to_identity(self) -> Device:
        """A device with identity only, for a GPU that does not answer."""
        return make_device(uuid=self.uuid, index=self.index, lost=True, **self.identity)

    def to_reading(self) -> Device:
        if self.lost:
            return self.to_identity()
        if self._reader is None:
            return make_device(uuid=self.uuid, index=self.index, **self.identity)
        return make_device(
            uuid=self.uuid,
            index=self.index,
            **self.identity,
            **self._reader.values(),
            **self._busy,
            **self._profiled.get(None, {}),
            processes_known=self.processes is not ABSENT,
            p2p_nvlink_status=self._peers.by_index(),
            instances=tuple(
                instance.to_reading(
                    self._profiled.get(instance.gpu_instance, {}), instance.uuid not in self._unknown_processes
                )
                for instance in self._instances
            ),
        )

    def _close_profilers(self) -> None:
        for profiler in self.profilers.values():
            profiler.close()
        self.profilers.clear()
        self._profiled = {}

    def close(self) -> None:
        self._close_profilers()
        self._peers.clear()
