"""One GPU over time: what it is, what it last answered in each tier, its MIG instances and its processes.

Its calls are made by jobs of its lane; everything here belongs to the job while one runs, and to the source
when the lane is idle. A lost GPU keeps its identity and nothing else, and is asked again at every reading: when
it answers, it is back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gpuscope.readings import ABSENT, Device, Maybe, Uuid
from gpuscope.sources import Tier
from gpuscope.sources.nvml import call_table as rows
from gpuscope.sources.nvml import field_values as fields
from gpuscope.sources.nvml.clocks import Clocks
from gpuscope.sources.nvml.driver_calls import Ask, Gate, GpuLostError
from gpuscope.sources.nvml.identity import read_identity
from gpuscope.sources.nvml.instances import Instance, find_instances
from gpuscope.sources.nvml.part import PartReader
from gpuscope.sources.nvml.peers import Peer, PeerStatuses
from gpuscope.sources.nvml.process_list import FoundProcesses, ProcessLists, ProcessShares
from gpuscope.sources.nvml.profiling import Gpm, Profiler, supports_gpm
from gpuscope.sources.nvml.samples import UtilizationSamples
from gpuscope.sources.nvml.tiers import P2P_STATUS

REPROBE_SECONDS: Final = 300.0  # when what was refused is asked again
_MOST_FANS: Final = 16
_MOST_LINKS: Final = 72
_MIG_MODE: Final[Ask] = ("nvmlDeviceGetMigMode", ())


class Gpu:
    def __init__(self, gate: Gate, index: int, uuid: Uuid, clocks: Clocks) -> None:
        self.gate = gate
        self.lane = gate.lane
        self.index = index
        self.uuid = uuid
        self.lost = False
        self.identity: dict[str, Any] = {}
        self.processes: Maybe[list[FoundProcesses]] = ABSENT
        # The source's own: what it shows of this GPU, of when that is, and what is still to be read.
        self.device: Device | None = None
        self.answered_at = clocks.monotonic()
        self.owed: frozenset[Tier] = frozenset()
        self.failing: dict[str, int] = {}
        self._clocks = clocks
        self._gpm = Gpm(gate.library)
        self._peers_tier = gate.library.tier_plan.tier_of(Tier.SLOW, [(P2P_STATUS, None)])
        self._reader: PartReader | None = None
        self._asked_all_at = clocks.monotonic()
        self._returned_calls = 0  # stuck calls that had returned when everything was asked
        self._identified = False  # did every question of the identity get an answer, if only a refusal
        self._has_gpm: bool | None = None
        self._profilers: dict[int | None, Profiler] = {}  # by GPU instance; None is the whole GPU
        self._profiled: dict[int | None, dict[str, Any]] = {}
        self._instances: list[Instance] = []
        self._mig_enabled: Maybe[float] = ABSENT
        self._samples = UtilizationSamples(gate, clocks)
        self._shares = ProcessShares(gate, clocks)
        self._busy: dict[str, Any] = {}
        self._peers = PeerStatuses(gate)
        self._lists = ProcessLists(gate.library)
        self._unknown_processes: set[Uuid] = set()  # of instances
        self._failing_in: dict[Tier, frozenset[str]] = {}

    def follow(self, former: Gpu) -> None:
        """Goes on where the same GPU stood in the session before."""
        self._samples.follow(former._samples)

    def move_to(self, index: int) -> None:
        self.index = index
        self.lane.name = self.gate.who = f"GPU {index}"

    def pids(self) -> list[int]:
        return [] if self.processes is ABSENT else [pid for part in self.processes for pid in part.running]

    def start_over_if_due(self, due: frozenset[Tier]) -> None:
        """Gets to know the GPU anew now and then, and after a stuck call: it may have been part of that."""
        if self.lane.has_stuck_calls:
            return  # what is known by a call that is stuck now would be forgotten
        long_ago = self._clocks.monotonic() - self._asked_all_at >= REPROBE_SECONDS
        if self.lane.returned != self._returned_calls or (Tier.MEDIUM in due and long_ago):
            self.start_over()

    # Jobs

    def read_tiers(
        self, tiers: Iterable[Tier], due: frozenset[Tier], peers: Iterable[Peer], with_processes: bool
    ) -> None:
        """Reads those of `tiers` that are due or were never read."""
        for tier in tiers:
            if tier in due or self.lacks(tier):
                before = dict(self.lane.failures)
                self.read(tier)
                if tier is self._peers_tier and not self.lost:
                    self._peers.read(peers)
                if tier in due:
                    now = self.lane.failures.items()
                    self._failing_in[tier] = frozenset(name for name, n in now if n > before.get(name, 0))
        if with_processes:
            self.processes = self._read_processes()

    def read(self, tier: Tier) -> None:
        if self.lost and tier is not Tier.FAST:
            return
        try:
            self._read(tier)
            if self.lost:
                self._come_back()
        except GpuLostError:
            self._lose()

    def take_failures(self, due: frozenset[Tier]) -> dict[str, int]:
        """What failed since the last time; and with 0, what failed when its tier was last read."""
        failed = dict(self.lane.failures)
        self.lane.failures.clear()
        for tier, names in self._failing_in.items():
            if tier not in due:
                for name in names:
                    failed.setdefault(name, 0)
        return failed

    def lacks(self, tier: Tier) -> bool:
        """Whether this tier was never read, or not since the GPU came back."""
        return self._reader is None or self._reader.lacks(tier)

    def _read(self, tier: Tier) -> None:
        reader = self._reader or self._get_to_know()
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
        failed_before = self.lane.failures.total()
        self.identity = {**self.identity, **read_identity(self.gate)}
        self._identified = self.lane.failures.total() == failed_before and not self.lane.has_stuck_calls

    def _get_to_know(self) -> PartReader:
        self._identify()
        fans = self.gate.answer(("nvmlDeviceGetNumFans", ()))
        fans = 0 if fans is ABSENT else min(fans, _MOST_FANS)
        links = min(fields.link_count(self.gate), _MOST_LINKS)
        self._reader = PartReader(
            self.gate,
            (*rows.DEVICE_ROWS, *rows.fan_rows(fans), *rows.nvlink_rows(links)),
            {
                Tier.FAST: fields.FAST_FIELDS,
                Tier.MEDIUM: (*fields.MEDIUM_FIELDS, *fields.nvlink_fields(links)),
                Tier.SLOW: fields.SLOW_FIELDS,
            },
        )
        return self._reader

    def _read_busy(self) -> None:
        mean, seconds = self._samples.read()
        self._busy = {"utilization_mean_ratio": mean, "busy_seconds": seconds}

    def _look_for_instances(self, mig_enabled: Maybe[float]) -> None:
        if self.gate.is_stuck(_MIG_MODE):
            return  # its instances go on as they were
        if mig_enabled != self._mig_enabled:
            if self._mig_enabled is not ABSENT:
                self.forget()  # with MIG on, a GPU refuses what it gave before, and the other way round
            self._mig_enabled = mig_enabled
            self._find_instances()

    def _find_instances(self) -> None:
        if self._mig_enabled is ABSENT or not self._mig_enabled:
            self._instances = []
        else:
            before = self._instances
            self._instances = find_instances(self.gate, before)
            for instance in self._instances:
                if instance not in before:
                    instance.read(Tier.FAST)

    def _profile(self) -> None:
        if self._has_gpm is None:
            self._has_gpm = supports_gpm(self.gate)  # asked again when a stuck call has returned
        if not self._has_gpm:
            return
        wanted: list[int | None] = [None, *dict.fromkeys(each.gpu_instance for each in self._instances)]
        for gone in [key for key in self._profilers if key not in wanted]:
            self._profilers.pop(gone).close()
        for key in wanted:
            if key not in self._profilers:
                self._profilers[key] = Profiler(self.gate, self._gpm, key, self._clocks)
        self._profiled = {key: profiler.read() for key, profiler in self._profilers.items()}

    def _lose(self) -> None:
        self.lost = True
        self._mig_enabled = ABSENT
        self._instances = []
        self._busy = {}
        self._peers.clear()
        if self._reader is not None:
            self._reader.clear()
        self._close_profilers()

    def _come_back(self) -> None:
        self.lost = False
        self.forget()

    def start_over(self) -> None:
        """Gets to know the GPU anew at the next reading: what it is, what it has, what it gives."""
        self._asked_all_at = self._clocks.monotonic()
        self._returned_calls = self.lane.returned
        self.forget()
        self._reader = None

    def forget(self) -> None:
        """Asks again for everything that was refused."""
        self._has_gpm = None
        if self._reader is not None:
            self._reader.forget()
        for instance in self._instances:
            instance.forget()

    def _read_processes(self) -> Maybe[list[FoundProcesses]]:
        """Who runs here, by instance; ABSENT where the driver does not tell."""
        if self.lost:
            return ABSENT
        # A stuck call keeps the buffer it has, and writes into it when it returns.
        lists = ProcessLists(self.gate.library) if self.lane.has_stuck_calls else self._lists
        try:
            if self._mig_enabled is not ABSENT and self._mig_enabled:
                return self._instance_processes(lists)
            found = lists.read(self.gate)
            return ABSENT if found is ABSENT else [FoundProcesses(found, self._shares.read())]
        except GpuLostError:
            self._lose()
            return ABSENT

    def _instance_processes(self, lists: ProcessLists) -> Maybe[list[FoundProcesses]]:
        # Asked for the whole GPU, the driver lists them for root only; each instance lists its own for anyone.
        processes: list[FoundProcesses] = []
        self._unknown_processes = set()
        answered = not self._instances
        for instance in self._instances:
            try:
                found = lists.read(instance.gate)
            except GpuLostError:
                continue  # the instance was destroyed just now
            if found is not ABSENT:
                answered = True
                processes.append(FoundProcesses(found, ABSENT, instance.uuid))
            else:
                self._unknown_processes.add(instance.uuid)
        return processes if answered else ABSENT

    def to_identity(self) -> Device:
        """What stays known of a GPU that does not answer."""
        return Device(uuid=self.uuid, index=self.index, lost=True, **self.identity)

    def to_reading(self) -> Device:
        if self.lost:
            return self.to_identity()
        if self._reader is None:
            return Device(uuid=self.uuid, index=self.index, **self.identity)
        return Device(
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
        for profiler in self._profilers.values():
            profiler.close()
        self._profilers.clear()
        self._profiled = {}

    def close(self) -> None:
        self._close_profilers()
        self._peers.clear()
