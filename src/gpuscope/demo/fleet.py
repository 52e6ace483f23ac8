"""The simulated fleet: the reading of any node at any time, a function of the seed and that time.

`started_at`, the time when the program started, sets when scenarios begin. Boot times also depend on it, but in
steps of weeks: a program started again the next day finds the same nodes with the same counters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.demo.curve import CurveCache
from gpuscope.demo.jobs import SLURM, as_uuid, digest
from gpuscope.demo.plan import DemoSettings
from gpuscope.demo.scenarios import ScenarioNode, ScheduledScenario, apply_scenarios, parse_scenarios
from gpuscope.demo.schedule import EPOCH, ROLES, Unit, plan_node
from gpuscope.demo.simulated_gpu import Gpu, SimulatedInstance
from gpuscope.demo.simulated_host import GIB, Machine, read_host
from gpuscope.demo.simulated_load import SimulatedLoads
from gpuscope.demo.simulated_slurm import SimulatedSlurm
from gpuscope.demo.track import Timeline
from gpuscope.model.demo_model import DemoIdentity, DemoModel, demo_gpus, demo_gpus_of
from gpuscope.model.readings import ABSENT, Maybe, Reading, SlurmState, Uuid

# The models of the simulated fleet, which the vendors have, and the identity of each of its GPUs.


def find_model(text: str) -> tuple[DemoModel, bool]:
    """The model a user named (`h100`, `A100-80-mig`), and whether some of its GPUs are to be split."""
    typed = text.strip().lower().replace(" ", "").replace("_", "-")
    for gpus in demo_gpus().values():
        wanted = gpus.aliases.get(typed, typed)
        model = gpus.models.get(wanted.removesuffix(gpus.split_suffix))
        split = wanted.endswith(gpus.split_suffix)
        if model is not None and (model.profiles or not split):
            return model, split
    names = ", ".join(
        model.key + (f" (or {model.key}{gpus.split_suffix})" if model.profiles else "")
        for gpus in demo_gpus().values()
        for model in gpus.models.values()
    )
    raise UsageError(f"--demo-model: {text!r} is not one of {names}")


def identify(seed: int, node: int, gpu: int, model: DemoModel) -> DemoIdentity:
    """UUID, serial number and PCI address, derived from the seed, in the real formats."""
    salt = digest("gpu", seed, node, gpu)
    gpus = demo_gpus_of(model)
    return DemoIdentity(
        uuid=Uuid(gpus.uuid_start + as_uuid(salt)),
        serial=f"165{int(salt[32:44], 16) % 10**10:010d}",
        pci_bus_id=gpus.pci_bus_id(model, gpu),
        quality=0.95 + 0.05 * int(salt[44:48], 16) / 0xFFFF,
        warmth=6.0 * int(salt[48:52], 16) / 0xFFFF,
    )


def instance_uuid(seed: int, node: int, gpu: int, instance: int, model: DemoModel) -> Uuid:
    return Uuid(demo_gpus_of(model).instance_uuid_start + as_uuid(digest("mig", seed, node, gpu, instance)))


DAY: Final = 86_400.0
MIN_UPTIME_DAYS: Final = 35
SLURM_READER: Final = 0  # the node whose agent reads Slurm
UPTIME_DAYS: Final = 30  # further days until a reboot, which never happens while the program runs

# The model and the role of each node, in the order of the nodes, repeated for larger fleets.
MIX: Final = (
    ("h100", "cluster"),
    ("a100-80-mig", "serving"),
    ("l4", "media"),
    ("rtx4090", "workstations"),
    ("h200", "cluster"),
    ("b200", "cluster"),
    ("gb200", "cluster"),
    ("t4", "media"),
    ("v100", "cluster"),
    ("a100-40", "serving"),
)


@dataclass(frozen=True, slots=True)
class Node:
    machine: Machine
    model: DemoModel
    gpus: tuple[Gpu, ...]
    busy_at_boot: float

    def busy_seconds(self, at: float) -> float:
        """Busy seconds of all GPUs from boot until `at`."""
        at = max(at, self.machine.boot)
        return sum(gpu.busy_seconds(at) for gpu in self.gpus) - self.busy_at_boot


class DemoFleet:
    """Builds a node when it is first read, so that one node of a large fleet is cheap."""

    def __init__(
        self, settings: Settings, *, started_at: float | None = None, nodes: int | None = None
    ) -> None:
        self.started_at = time.time() if started_at is None else started_at
        own = settings.view(DemoSettings)
        self._seed = own.seed
        self._gpus = own.demo_gpus
        self._model = own.demo_model
        self._scenarios: tuple[ScheduledScenario, ...] = parse_scenarios(own.scenario)
        if self._model:
            find_model(self._model)
        count = nodes if nodes is not None else settings.demo_nodes
        self.node_count = 1 if count is None else count
        if self.node_count < 1:
            raise UsageError("--demo-nodes: a fleet has at least 1 node")
        self.loads = SimulatedLoads()
        self._nodes: dict[int, Node] = {}
        self._building = threading.Lock()  # the present and the past are read in two threads
        self._curve_caches: dict[str, CurveCache] = {}
        self._slurm: SimulatedSlurm | None = None

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(node_name(index) for index in range(self.node_count))

    @property
    def gpus_per_node(self) -> int:
        return self._gpus

    def node(self, index: int) -> Node:
        found = self._nodes.get(index)
        if found is None:
            if not 0 <= index < self.node_count:
                raise IndexError(f"node {index} of a fleet of {self.node_count}")
            with self._building:
                found = self._nodes.get(index) or self._build(index)
                self._nodes[index] = found
        return found

    def reading(self, node_index: int, at: float, since: float | None = None) -> Reading:
        """The node at `at`. Means and XIDs cover the time from `since`, the previous reading, until `at`."""
        node = self.node(node_index)
        vendor = demo_gpus_of(node.model)
        read = [gpu.read(at, since) for gpu in node.gpus]
        devices = tuple(device for device, _ in read)
        held = sum(1 for _, processes in read if processes)
        errors = chain.from_iterable(gpu.errors(since, at) for gpu in node.gpus) if since is not None else ()
        return Reading(
            drivers={vendor.vendor: vendor.driver},
            devices=devices,
            processes=tuple(process for _, processes in read for process in processes),
            host=read_host(node.machine, at, node.busy_seconds, held),
            slurm=self.slurm_state(at) if node_index == SLURM_READER else ABSENT,
            errors=tuple(sorted(errors, key=lambda event: event.at)),
            simulated=True,
        )

    def slurm_state(self, at: float) -> Maybe[SlurmState]:
        """The Slurm cluster that the fleet's nodes belong to; ABSENT if none of them does."""
        if self._slurm is None:
            nodes = [self.node(index) for index in range(self.node_count) if self._is_in_slurm(index)]
            self._slurm = SimulatedSlurm([(node.machine, node.gpus) for node in nodes])
        return self._slurm.state_at(at) if self._slurm.has_nodes else ABSENT

    def scenarios_begin(self, index: int) -> float:
        """When the oldest scenario of a node begins; the program's start if it has none."""
        begins = [scenario.begins(self.started_at) for scenario in self._scenarios if index == 0]
        return min([self.started_at, *begins])

    def _is_in_slurm(self, index: int) -> bool:
        # Scenarios start Slurm jobs on the first node, whatever else runs there.
        return ROLES[self._kind(index)[1]].manager == SLURM or (index == 0 and bool(self._scenarios))

    def _kind(self, index: int) -> tuple[str, str]:
        """The model, as a user types it, and the role of a node."""
        text, role = MIX[index % len(MIX)]
        if self._model:
            text = self._model
            role = next((r for t, r in MIX if find_model(t)[0] is find_model(text)[0]), "cluster")
        return text, role

    def _build(self, index: int) -> Node:
        text, role = self._kind(index)
        model, split = find_model(text)
        machine = self._machine(index, model)
        curves = self._curve_caches.setdefault(model.key, CurveCache(model, self._seed))
        gpus = self._plan(index, role, model, split, machine.boot, curves)
        if index == 0 and gpus:
            apply_scenarios(self._scenarios, ScenarioNode(gpus, curves), self.started_at)
        for gpu in gpus:
            gpu.start()
        return Node(machine, model, gpus, sum(gpu.busy_seconds(machine.boot) for gpu in gpus))

    def _plan(
        self, index: int, role: str, model: DemoModel, split: bool, boot: float, curves: CurveCache
    ) -> tuple[Gpu, ...]:
        layouts = [_layout(model, split, gpu, self._gpus) for gpu in range(self._gpus)]
        units = [
            Unit(chip_share=model.profiles[row].chip_share, is_instance=True) if layout else Unit()
            for layout in layouts
            for _, row in layout or ((0, 0),)
        ]
        timelines = iter(plan_node(f"{self._seed}/{index}", ROLES[role], units, curves))
        gpus = tuple(
            Gpu(
                gpu,
                model,
                identify(self._seed, index, gpu, model),
                boot,
                self._instances(index, gpu, model, layout, timelines) if layout else next(timelines),
            )
            for gpu, layout in enumerate(layouts)
        )
        linked = [gpu for gpu in gpus if model.links and not gpu.instances]  # a split GPU has no links
        for gpu in linked:
            gpu.peers = tuple(peer for peer in linked if peer is not gpu)
        return gpus

    def _instances(
        self,
        node: int,
        gpu: int,
        model: DemoModel,
        layout: tuple[tuple[int, int], ...],
        timelines: Iterator[Timeline],
    ) -> tuple[SimulatedInstance, ...]:
        return tuple(
            SimulatedInstance(
                instance_uuid(self._seed, node, gpu, number, model),
                number,
                model.profiles[row],
                next(timelines),
            )
            for number, row in layout
        )

    def _machine(self, index: int, model: DemoModel) -> Machine:
        big = model.links > 0
        return Machine(
            name=node_name(index),
            boot=self._boot(index),
            gpus=self._gpus,
            cpus=32 if big else 16,
            memory_bytes=(2048 if big else 256) * GIB,
            aarch64=model.is_on_arm,
        )

    def _boot(self, index: int) -> float:
        """Each node has its own day for reboots and has been up for longer than the simulated history."""
        shift = int(digest("boot", self._seed, index)[:8], 16) % int(UPTIME_DAYS * DAY)
        rounds = (self.started_at - EPOCH - shift) // (UPTIME_DAYS * DAY)
        return EPOCH + shift + rounds * UPTIME_DAYS * DAY - MIN_UPTIME_DAYS * DAY


def node_name(index: int) -> str:
    """`gpu-a01` to `gpu-a32`, then `gpu-b01`: racks of 32."""
    rack, place = divmod(index, 32)
    letters = ""
    rack += 1
    while rack:
        rack, letter = divmod(rack - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return f"gpu-{letters}{place + 1:02d}"


def _layout(model: DemoModel, split: bool, gpu: int, gpus: int) -> tuple[tuple[int, int], ...]:
    """The instances of this GPU. On a node with split GPUs these are the last quarter, at least one."""
    first = gpus - max(1, gpus // 4)
    return model.layouts[(gpu - first) % len(model.layouts)] if split and gpu >= first else ()
