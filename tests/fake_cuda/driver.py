"""The tests' side of the fake CUDA driver: its devices are the cards of a `FakeDriver`.

cuda = FakeCuda(tmp_path / "cuda", driver)
cuda.fail("cuMemAlloc_v2", 2)
subprocess.run(["gpuscope", "load"], env={**os.environ, **cuda.env})
assert cuda.misuse() == [] and cuda.leaks() == []
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.fake_cuda.build import library
from tests.fake_nvml.driver import FakeDriver

MULTIPROCESSORS = 132


class FakeCuda:
    def __init__(self, folder: Path, driver: FakeDriver) -> None:
        folder.mkdir()
        self.folder = folder
        self._driver = driver
        self._faults = ""
        self.describe_devices()

    def describe_devices(self, *mig_uuids: str) -> None:
        """Write the list of GPUs; a GPU in MIG mode is there only by its instances."""
        lines = []
        for card in self._driver.cards:
            numbers = card.numbers
            if not numbers.get("mig_mode"):
                capability = f"{numbers['capability_major']:.0f} {numbers['capability_minor']:.0f}"
                memory = int(numbers["memory_total"])
                lines.append(
                    f"{card.texts['uuid']} {capability} {MULTIPROCESSORS} {memory} {card.texts['name']}\n"
                )
        lines += [f"{uuid} 9 0 16 {10 << 30} MIG\n" for uuid in mig_uuids]
        (self.folder / "devices").write_text("".join(lines))

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to run on both fake libraries."""
        nvml = self._driver.env
        path = f"{library().parent}:{nvml['LD_LIBRARY_PATH']}"
        return {**nvml, "LD_LIBRARY_PATH": path, "FAKE_CUDA": str(self.folder)}

    def fail(self, function: str, code: int, *, after: int = 0) -> None:
        """The function fails with this code once it was called `after` times."""
        self._faults += f"{function} {code} {after}\n"
        (self.folder / "faults").write_text(self._faults)

    def log(self) -> list[str]:
        return [line for path in sorted(self.folder.glob("calls.*")) for line in path.read_text().splitlines()]

    def calls(self) -> Counter[str]:
        return Counter(line.split()[0] for line in self.log())

    def misuse(self) -> list[str]:
        """Calls with wrong arguments, handles or order."""
        return [line for line in self.log() if line.startswith("misuse")]

    def leaks(self) -> list[str]:
        """Devices that a process left with a context or memory."""
        return [
            line for line in self.log() if line.startswith("end") and not line.endswith("contexts 0 bytes 0")
        ]
