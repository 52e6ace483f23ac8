"""One GPU of the fake driver: its numbers, its timeline, its processes; rendered as state lines.

A flow (`util`, `power_mw`, …) lives on the timeline: setting it begins a phase now, so counters such
as energy stay the exact integral of what was set. Everything else is a plain key. A key set to None
disappears, which the library answers with "not supported".
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import quote_from_bytes

from tests.fake_nvml.models import MODELS, Model, idle_flows, levels, zero_fields

TEXT_KEYS = frozenset(
    {"uuid", "name", "serial", "part_number", "vbios", "gsp_version", "fabric_cluster", "chassis"}
    | {"inforom_image", "inforom_oem", "inforom_ecc", "inforom_power"}
)
KEPT_HISTORY_US = 60_000_000  # three times what the library's sample ring reaches back
UPTIME_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU. `memory` None is NVML's "not available"; `name` None is a process that is
    gone by the time its name is asked for; `share` is its part of the GPU's activity."""

    pid: int
    memory: int | None = 512 << 20
    kind: str = "C"
    name: str | bytes | None = "python"
    share: float = 1.0
    gi: int | None = None
    ci: int | None = None
    started_us: int = 0
    ended_us: int = 0


@dataclass(frozen=True, slots=True)
class Mig:
    """A MIG compute instance; sizes follow from the profile ("1g.10gb") unless given."""

    gi: int
    ci: int = 0
    profile: str = "1g.10gb"
    memory_used: int = 0
    busy: float = 0.0
    uuid: str | None = None
    memory_total: int | None = None
    index: int | None = None  # its place, unless a hole before it is wanted


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink's state and error counters."""

    active: bool = True
    crc_flit: int = 0
    crc_data: int = 0
    replay: int = 0
    recovery: int = 0
    ecc: int = 0


@dataclass(slots=True)
class Phase:
    """From `at_us` on, the flows have these values; `totals` are their integrals up to there."""

    at_us: int
    values: dict[str, float]
    totals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Activity:
    """How busy a MIG instance is since a moment, and the integral up to it."""

    busy: float
    since_us: int
    total: float = 0.0

    def change(self, busy: float, now_us: int) -> Activity:
        return Activity(busy, now_us, self.total + self.busy * (now_us - self.since_us) / 1e6)


@cache
def known_keys() -> tuple[frozenset[str], frozenset[str]]:
    """(flows, levels) as src/keys.def names them."""
    flows, plain = set(), set()
    text = (Path(__file__).parent / "src" / "keys.def").read_text()
    for kind, name in re.findall(r"^(FLOW|LEVEL|COUNT_ECC)\((\w+)\)", text, re.MULTILINE):
        if kind == "FLOW":
            flows.add(name)
        elif kind == "LEVEL":
            plain.add(name)
        else:
            spans = [
                f"ecc_{error}_{span}_{name}"
                for error in ("corrected", "uncorrected")
                for span in ("volatile", "aggregate")
            ]
            plain.update(spans)
    return frozenset(flows), frozenset(plain)


@dataclass(slots=True)
class Card:
    """The state of one GPU, by key."""

    model_name: str
    model: Model
    numbers: dict[str, float]
    texts: dict[str, str]
    phases: list[Phase]
    processes: list[Process] = field(default_factory=list)
    migs: list[Mig] = field(default_factory=list)
    mig_activity: dict[str, Activity] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    peers: dict[str, tuple[int, int]] = field(default_factory=dict)  # UUID -> error, P2P status over NVLink
    pages: list[tuple[int, int, int]] = field(default_factory=list)
    fields: dict[tuple[int, int | None], tuple[int, str, float]] = field(default_factory=dict)

    @classmethod
    def new(cls, model_name: str, index: int, seed: str, now_us: int) -> Card:
        model = MODELS[model_name]
        identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}/{model_name}/{index}")
        texts = {"uuid": f"GPU-{identity}", "name": model.name, "vbios": "96.00.89.00.01"}
        if model.serial:
            texts |= {"serial": str(identity.int % 10**13).zfill(13), "part_number": "692-2G520-0200-000"}
            texts |= {"inforom_image": "G520.0200.00.05", "inforom_oem": "2.1"}
        if model.ecc:
            texts["inforom_ecc"] = "7.16"
        if levels(model, index)["gsp_mode"]:
            texts["gsp_version"] = "580.95.05"
        boot = Phase(now_us - UPTIME_US, idle_flows(model))
        card = cls(model_name, model, levels(model, index), texts, [boot])
        card.fields = {(field_id, None): (0, "l", 0) for field_id in zero_fields(model)}
        return card

    @property
    def uuid(self) -> str:
        return self.texts["uuid"]

    def flow(self, name: str, at_us: int) -> float | None:
        """The value of a flow at a moment."""
        current = [phase for phase in self.phases if phase.at_us <= at_us] or self.phases[:1]
        return current[-1].values.get(name)

    def set(self, values: dict[str, float | str | None], now_us: int) -> None:
        flows, plain = known_keys()
        changed: dict[str, float] = {}
        for key, value in values.items():
            if key in TEXT_KEYS:
                self.texts[key] = "" if value is None else str(value)
            elif key in flows and value is None:
                for phase in self.phases:
                    phase.values.pop(key, None)
            elif key in flows:
                changed[key] = float(value or 0)
            elif key not in plain:
                raise KeyError(f"{key!r} is no key of the fake driver; src/keys.def lists them")
            elif value is None:
                self.numbers.pop(key, None)
            else:
                self.numbers[key] = float(value)
        if changed:
            self.change_flows(changed, now_us)
            self.numbers["since_us"] = now_us

    def change_flows(self, values: dict[str, float], at_us: int) -> None:
        """Begin a phase; what was planned for later is dropped."""
        self.phases = [phase for phase in self.phases if phase.at_us < at_us] or self.phases[:1]
        self.phases.append(Phase(at_us, {**self.phases[-1].values, **values}))

    def busy_flows(self, util: float) -> dict[str, float]:
        """Flows of this model at a utilisation: power between idle and just under the limit."""
        idle_mw, limit_mw = self.model.power[0] * 1000, self.numbers["power_limit_mw"]
        flows = {"util": util, "util_memory": util * 0.6, "reason_idle": 0.0, "sm_active": util * 0.9}
        flows |= {"sm_occupancy": util * 0.5, "tensor": util * 0.4, "dram": util * 0.3}
        flows["power_mw"] = idle_mw + (limit_mw * 0.95 - idle_mw) * util / 100
        return {name: value for name, value in flows.items() if name in self.phases[-1].values}

    def burst(self, values: dict[str, float], begin_us: int, end_us: int) -> None:
        before = dict(self.phases[-1].values)
        self.change_flows(values, begin_us)
        self.phases.append(Phase(end_us, before))

    def restart_counters(self, now_us: int) -> None:
        """What the driver counts since it was loaded begins at zero."""
        self.phases = [Phase(now_us, dict(self.phases[-1].values))]
        self.numbers["since_us"] = now_us
        for key in self.numbers:
            if key == "energy_mj" or "_volatile_" in key:
                self.numbers[key] = 0

    def forget_old_phases(self, now_us: int) -> None:
        """Fold phases that no sample reaches any more into the totals of the one that follows."""
        while len(self.phases) > 1 and self.phases[1].at_us < now_us - KEPT_HISTORY_US:
            first, second = self.phases[:2]
            seconds = (second.at_us - first.at_us) / 1e6
            for name, value in first.values.items():
                second.totals[name] = first.totals.get(name, 0.0) + value * seconds
            del self.phases[0]

    def lines(self, index: int) -> Iterator[str]:
        """The state lines of this GPU."""
        prefix = f"gpu{index}."
        for key, text in self.texts.items():
            if text:
                yield f"{prefix}{key} {encode(text)}"
        for key, number in self.numbers.items():
            yield f"{prefix}{key} {number:.17g}"
        before: dict[str, float] = {}
        for phase in self.phases:  # each line has what changed
            values = [
                f"{name} {value:.17g}" for name, value in phase.values.items() if before.get(name) != value
            ]
            totals = [f"+{name} {value:.17g}" for name, value in phase.totals.items() if value]
            yield f"{prefix}at {phase.at_us} {' '.join(values + totals)}"
            before = phase.values
        for process in self.processes:
            yield prefix + _process_line(process)
        for place, mig in enumerate(self.migs):
            yield prefix + self._mig_line(mig, place)
        for number, link in self.links.items():
            counters = f"{link.crc_flit} {link.crc_data} {link.replay} {link.recovery} {link.ecc}"
            yield f"{prefix}link {number} {int(link.active)} {counters}"
        for peer, (error, status) in self.peers.items():
            yield f"{prefix}peer {encode(peer)} {error} {status}"
        for cause, address, retired_at in self.pages:
            yield f"{prefix}page {cause} {address} {retired_at}"
        # The first line that fits is the driver's answer: one link's own comes before that of all links.
        for (field_id, scope), (status, kind, value) in sorted(
            self.fields.items(), key=lambda item: item[0][1] is None
        ):
            yield f"{prefix}field {field_id} {_or_dash(scope)} {status} {kind} {value:.17g}"

    def mig_uuid(self, mig: Mig) -> str:
        return (
            mig.uuid or f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self.uuid}/{mig.gi}/{mig.ci}/{mig.profile}')}"
        )

    def set_migs(self, migs: list[Mig], now_us: int) -> None:
        """Replace the instances; those that stay go on with their counters."""
        idle = Activity(0.0, now_us)
        before, self.mig_activity, self.migs = self.mig_activity, {}, migs
        for mig in migs:
            identity = self.mig_uuid(mig)
            self.mig_activity[identity] = before.get(identity, idle).change(mig.busy, now_us)

    def _mig_line(self, mig: Mig, place: int) -> str:
        shape = re.fullmatch(r"(?:(\d)c\.)?(\d)g\.(\d+)gb(?:\+.*)?", mig.profile)
        if shape is None:
            raise ValueError(f"{mig.profile!r} is no MIG profile such as 1g.10gb or 1c.3g.40gb")
        slices, gigabytes = int(shape[2]), int(shape[3])
        compute = int(shape[1] or slices)
        total = mig.memory_total or gigabytes * 1000**3 // (1 << 20) * (1 << 20)
        sms = self.model.sms // 8 * compute
        engines = f"{slices} {max(1, slices // 2)} 0 {max(1, slices // 2)} {int(slices == 7)}"
        index = place if mig.index is None else mig.index
        activity = self.mig_activity[self.mig_uuid(mig)]
        identity = f"{self.mig_uuid(mig)} {mig.profile} {index} {mig.gi} {mig.ci}"
        busy = f"{activity.busy:.17g} {activity.since_us} {activity.total:.17g}"
        return f"mig {identity} {total} {mig.memory_used} {busy} {slices} {compute} {sms} {engines}"


def _process_line(process: Process) -> str:
    name = "-" if process.name is None else encode(process.name)
    where = f"{_or_dash(process.memory)} {_or_dash(process.gi)} {_or_dash(process.ci)}"
    when = f"{process.started_us} {process.ended_us}"
    return f"process {process.pid} {process.kind} {where} {process.share:.17g} {when} {name}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def encode(text: str | bytes) -> str:
    """Percent-encoding, with "-" too: alone it means "none". NUL would end the C string: dropped."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return quote_from_bytes(raw.replace(b"\0", b""), safe="").replace("-", "%2D")
