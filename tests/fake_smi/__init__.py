"""A fake nvidia-smi for tests: replays a capture, and goes wrong when told to. See replay.py."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPLAY = Path(__file__).with_name("replay.py")
CAPTURES = Path(__file__).parent.parent / "captures" / "nvidia-smi"


@dataclass
class FakeSmi:
    folder: Path
    capture: Path
    state: str = "idle"
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)  # option -> what it does instead
    lost: str = ""  # UUID of a GPU that fell off the bus

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.apply()

    def apply(self, **changes: Any) -> None:
        """Changes the machine from the next run on."""
        for name, value in changes.items():
            setattr(self, name, value)
        config = {
            "capture": str(self.capture),
            "state": self.state,
            "faults": self.faults,
            "lost": self.lost,
        }
        fresh = self.folder / "config.new"
        fresh.write_text(json.dumps(config), "utf-8")
        fresh.replace(self.folder / "config.json")

    @property
    def command(self) -> str:
        """A wrapper command as a user would write it: quoted for a POSIX shell."""
        return shlex.join([sys.executable, "-S", "-E", str(REPLAY), str(self.folder)])

    def install(self, bin_folder: Path) -> Path:
        """The same as an executable file named nvidia-smi, for a PATH."""
        bin_folder.mkdir(parents=True, exist_ok=True)
        script = bin_folder / "nvidia-smi"
        script.write_text(f'#!/bin/sh\nexec {self.command} "$@"\n', "utf-8")
        script.chmod(0o755)
        return script

    def runs(self) -> list[list[str]]:
        """The arguments of each run so far."""
        log = self.folder / "runs"
        return [json.loads(line)[1:] for line in log.read_text().splitlines()] if log.exists() else []

    def pids(self) -> list[int]:
        log = self.folder / "runs"
        return [json.loads(line)[0] for line in log.read_text().splitlines()] if log.exists() else []

    def options(self) -> list[str]:
        return [arguments[0].partition("=")[0] for arguments in self.runs()]
