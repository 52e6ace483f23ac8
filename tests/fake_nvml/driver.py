"""The tests' side of the fake driver: say what the hardware does, and the library answers so.

    driver = FakeDriver(tmp_path / "state")
    driver.gpus(8, model="H100")
    driver.set(0, util=87, power_mw=512_000, temperature=61)
    driver.processes(0, [Process(4242, memory=20 << 30, name="train.py")])
    subprocess.run(["nvitop", "-1"], env={**os.environ, **driver.env})

Every change is written atomically and is seen by the next NVML call of any process that runs on the
library. Counters are integrals over the machine's clock, or over the test's own after `freeze`.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.fake_nvml.build import library
from tests.fake_nvml.card import Card, Link, Mig, Phase, Process

__all__ = ["ERRORS", "REASONS", "FakeDriver", "Link", "Mig", "Process"]

ERRORS = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "INSUFFICIENT_SIZE": 7,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "FUNCTION_NOT_FOUND": 13,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19,
    "MEMORY": 20,
    "NO_DATA": 21,
    "UNKNOWN": 999,
}

REASONS = (
    "idle", "app_clocks", "sw_power_cap", "hw_slowdown", "sync_boost",
    "sw_thermal", "hw_thermal", "hw_power_brake", "display_clocks",
)  # fmt: skip

# Milliseconds. Only the 20 ms of PCIe throughput is documented by NVIDIA; the others are round
# numbers of the size people report for an idle driver, enough to show how a client adds them up.
REALISTIC_MS = {
    "*": 0.03,
    "nvmlInit": 20.0,
    "nvmlDeviceGetPcieThroughput": 20.0,
    "nvmlDeviceGetFieldValues": 0.3,
    "nvmlDeviceGetSamples": 0.3,
    "nvmlDeviceGetProcessUtilization": 0.5,
    "nvmlDeviceGetProcessesUtilizationInfo": 0.5,
    "nvmlDeviceGetComputeRunningProcesses": 0.3,
    "nvmlDeviceGetGraphicsRunningProcesses": 0.3,
    "nvmlDeviceGetMPSComputeRunningProcesses": 0.3,
    "nvmlDeviceGetUtilizationRates": 0.1,
    "nvmlDeviceGetPowerUsage": 0.1,
    "nvmlGpmSampleGet": 1.0,
}


CALL_ROW, CALL_ROWS = struct.Struct("=56sQ"), 1024  # as src/calls.c has them


class FakeDriver:
    """A machine's NVIDIA driver, as far as NVML shows it."""

    def __init__(
        self, path: Path, *, seed: str = "", driver_version: str = "580.95.05", cuda_version: int = 13000
    ) -> None:
        """`seed` tells machines apart: cards of equal seed, model and order have equal UUIDs."""
        self.path = path
        self.seed = seed
        self.driver_version = driver_version
        self.cuda_version = cuda_version
        self.cards: list[Card] = []
        self._driver_error = 0
        self._epoch = 0
        self._period_us = 1_000_000 // 6
        self._frozen_us = 0
        self._born = 0  # makes every card's UUID its own, also that of a swapped one
        self._faults: list[tuple[str, str, int]] = []
        self.hangs: list[tuple[str, str]] = []
        self._delays: dict[str, int] = {}
        self._xids: list[str] = []
        self._xid_count = 0
        self._generation = 0
        self._batch_depth = 0
        self._save()

    @property
    def env(self) -> dict[str, str]:
        """What a process needs in its environment, before it starts, to run on this driver."""
        folders = [str(library().parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(filter(None, folders)), "FAKE_NVML_STATE": str(self.path)}

    def attach(self) -> ctypes.CDLL:
        """Load the library into this process; pynvml's dlopen by soname then finds this one."""
        loaded = ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
        loaded.fake_use_state(os.fsencode(self.path))
        return loaded

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Several changes that a reader sees together."""
        self._batch_depth += 1
        try:
            yield
        finally:
            self._batch_depth -= 1
            self._save()

    # Hardware

    def gpus(self, count: int, model: str = "H100") -> None:
        """Begin with `count` idle cards of one model."""
        self.cards = []
        with self.at_once():
            for _ in range(count):
                self.hotplug(model)

    def hotplug(self, model: str = "H100") -> None:
        """One more card. As with the real library, a running client sees it after its next init."""
        self.cards.append(self._new_card(model, len(self.cards)))
        self._save()

    def unplug(self, gpu: int) -> None:
        """Take a card out: lost to whoever holds its handle, not there at the next init."""
        del self.cards[gpu]
        self._save()

    def swap(self, gpu: int, model: str | None = None) -> None:
        """Another card in the same place: same index and bus address, new UUID and serial."""
        self.cards[gpu] = self._new_card(model or self.cards[gpu].model_name, gpu)
        self._save()

    def lose(self, gpu: int) -> None:
        """The card falls off the bus: every call on it answers GPU_IS_LOST."""
        self.set(gpu, lost=1)

    def find(self, gpu: int) -> None:
        """A lost card answers again."""
        self.set(gpu, lost=None)

    # Numbers

    def set(
        self, gpu: int, *, reasons: Sequence[str] | None = None, ago: float = 0, **values: float | str | None
    ) -> None:
        """Set keys of src/keys.def; None takes a key away. `reasons` are clock event reasons. With
        `ago`, as if set that many seconds ago: clients that look back a while see only this."""
        if reasons is not None:
            unknown = set(reasons) - set(REASONS)
            if unknown:
                raise KeyError(f"{sorted(unknown)} are no clock event reasons; there are {REASONS}")
            values |= {f"reason_{name}": float(name in reasons) for name in REASONS}
        self.cards[gpu].set(values, self.now_us() - round(ago * 1e6))
        self._save()

    def burst(self, gpu: int, seconds: float, *, util: float = 100.0, **flows: float) -> None:
        """Busy from now for `seconds`, then as before; other flows follow `util` unless given."""
        card, now = self.cards[gpu], self.now_us()
        card.burst(card.busy_flows(util) | flows, now, now + round(seconds * 1e6))
        self._save()

    def busy(self, gpu: int, util: float = 90.0, *, ago: float = 0) -> None:
        """Busy from now (or some seconds ago) on, with power and profiling to match."""
        card = self.cards[gpu]
        card.set({**card.busy_flows(util)}, self.now_us() - round(ago * 1e6))
        self._save()

    def processes(self, gpu: int, processes: Sequence[Process]) -> None:
        """Replace the processes of a GPU."""
        self.cards[gpu].processes = list(processes)
        self._save()

    def mig(self, gpu: int, instances: Sequence[Mig]) -> list[str]:
        """Turn MIG on with these instances (none: MIG off) and give their UUIDs."""
        card = self.cards[gpu]
        card.set_migs(list(instances), self.now_us())
        self.set(gpu, mig_mode=int(bool(instances)), mig_pending=int(bool(instances)))
        return [card.mig_uuid(mig) for mig in instances]

    def link(self, gpu: int, number: int, link: Link) -> None:
        """State and error counters of one NVLink."""
        self.cards[gpu].links[number] = link
        self._save()

    def peer(self, gpu: int, other: int, status: int = 0, *, error: str | None = None) -> None:
        """What P2P over NVLink answers from one GPU towards another: an NVML_P2P_STATUS_*, or an error."""
        self.cards[gpu].peers[self.cards[other].uuid] = (ERRORS[error] if error else 0, status)
        self._save()

    def retire_page(self, gpu: int, address: int, *, double_bit: bool = False, at: int = 0) -> None:
        """Retire a page (Volta and Turing; newer cards remap rows)."""
        self.cards[gpu].pages.append((int(double_bit), address, at))
        self._save()

    def field(
        self,
        gpu: int,
        field_id: int,
        value: float,
        *,
        scope: int | None = None,
        kind: str = "u",
        error: str | None = None,
    ) -> None:
        """Answer a field value by id. `kind`: u(nsigned), l(ong), i(nt), d(ouble)."""
        status = ERRORS[error] if error else 0
        self.cards[gpu].fields[field_id, scope] = (status, kind, value)
        self._save()

    def xid(self, gpu: int, code: int, *, gi: int | None = None, ci: int | None = None) -> None:
        """Raise an XID: each event set registered for the GPU gets it once."""
        self._xid_count += 1
        instance = " ".join("-" if part is None else str(part) for part in (gi, ci))
        self._xids.append(f"xid {self._xid_count} {self.cards[gpu].uuid} {code} {instance}")
        del self._xids[:-64]
        self._save()

    # Trouble

    def unload(self) -> None:
        """The kernel module is gone: every call, init too, answers DRIVER_NOT_LOADED."""
        self._driver_error = ERRORS["DRIVER_NOT_LOADED"]
        self._save()

    def mismatch(self) -> None:
        """Library and kernel module are of different versions."""
        self._driver_error = ERRORS["LIB_RM_VERSION_MISMATCH"]
        self._save()

    def reload(self, driver_version: str | None = None) -> None:
        """The driver is back, its counters begin anew; who was initialised before must be so again."""
        self._driver_error = 0
        for card in self.cards:
            card.restart_counters(self.now_us())
        self._epoch += 1
        self.driver_version = driver_version or self.driver_version
        self._save()

    def fail(self, function: str, gpu: int | None = None, error: str = "UNKNOWN") -> None:
        """Let a function ("*": all) fail, on one GPU or on all. Names go without _v2."""
        self._faults.append((function, self._uuid_or_any(gpu), ERRORS[error]))
        self._save()

    def without(self, *functions: str) -> None:
        """An older driver: as if its library had no such functions."""
        for function in functions:
            self.fail(function, error="FUNCTION_NOT_FOUND")

    def hang(self, function: str, gpu: int | None = None) -> None:
        """Let calls of a function not return until `heal`."""
        self.hangs.append((function, self._uuid_or_any(gpu)))
        self._save()

    def latency(self, function: str, ms: float) -> None:
        """Let each call of a function ("*": all without their own) take this long, asleep."""
        self._delays[function] = round(ms * 1000)
        self._save()

    def realistic_latency(self) -> None:
        """Delays of the size a real driver has."""
        with self.at_once():
            for function, ms in REALISTIC_MS.items():
                self.latency(function, ms)

    def heal(self) -> None:
        """No more faults, hangs and delays."""
        self._faults.clear()
        self.hangs.clear()
        self._delays.clear()
        self._save()

    def count_calls(self) -> None:
        """Count calls from now on, in processes that start (or attach) after this."""
        self._calls_path.write_bytes(bytes(CALL_ROWS * CALL_ROW.size))

    def calls(self) -> dict[str, int]:
        """How often each function was called by all processes since `count_calls`."""
        rows = CALL_ROW.iter_unpack(self._calls_path.read_bytes())
        return {name.rstrip(b"\0").decode(): count for name, count in rows if count}

    @property
    def _calls_path(self) -> Path:
        return self.path.with_name(self.path.name + ".calls")

    # Time

    def sample_period(self, seconds: float) -> None:
        """How often the driver samples utilisation (default 1/6 s)."""
        self._period_us = max(1, round(seconds * 1e6))
        self._save()

    def freeze(self, at_us: int | None = None) -> None:
        """Stop the driver's clock; from now on only `advance` moves it."""
        self._frozen_us = at_us or self.now_us()
        self._save()

    def advance(self, seconds: float) -> None:
        """Move the stopped clock."""
        if not self._frozen_us:
            raise RuntimeError("advance() moves a clock that freeze() has stopped")
        self._frozen_us += round(seconds * 1e6)
        self._save()

    def now_us(self) -> int:
        """The driver's clock, in microseconds of the Unix epoch."""
        return self._frozen_us or time.time_ns() // 1000

    def energy_mj(self, gpu: int, at_us: int | None = None) -> float:
        """What the energy counter is, or will be, at a moment: for a test to compare with."""
        card, end = self.cards[gpu], at_us or self.now_us()
        total = card.numbers.get("energy_mj", 0.0) + card.phases[0].totals.get("power_mw", 0.0)
        following: list[Phase | None] = [*card.phases[1:], None]
        for phase, after in zip(card.phases, following, strict=True):
            until = min(after.at_us, end) if after else end
            total += phase.values.get("power_mw", 0.0) * max(0, until - phase.at_us) / 1e6
        return total

    def _new_card(self, model: str, index: int) -> Card:
        self._born += 1
        return Card.new(model, index, f"{self.seed}/{self._born}", self.now_us())

    def _uuid_or_any(self, gpu: int | None) -> str:
        return "*" if gpu is None else self.cards[gpu].uuid

    def _lines(self) -> Iterator[str]:
        yield f"driver {self._driver_error}"
        yield f"epoch {self._epoch}"
        yield f"clock_us {self._frozen_us}"
        yield f"sample_period_us {self._period_us}"
        yield f"cuda_version {self.cuda_version}"
        yield f"driver_version {self.driver_version}"
        yield f"nvml_version 13.{self.driver_version}"
        for function, who, error in self._faults:
            yield f"fault {function} {who} {error}"
        for function, who in self.hangs:
            yield f"hang {function} {who}"
        # the last matching line wins, so the one for all goes first
        for function, us in sorted(self._delays.items(), key=lambda item: item[0] != "*"):
            yield f"delay {function} {us}"
        yield from self._xids
        for index, card in enumerate(self.cards):
            card.forget_old_phases(self.now_us())
            yield from card.lines(index)

    def _save(self) -> None:
        if self._batch_depth:
            return
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text("\n".join(self._lines()) + "\n")
        fresh.replace(self.path)
        self._generation += 1
        counter = self.path.with_name(self.path.name + ".generation")
        descriptor = os.open(counter, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, struct.pack("=Q", self._generation), 0)
        finally:
            os.close(descriptor)
