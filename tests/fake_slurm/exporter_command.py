"""The command that serves the metrics of given Slurm clients under the names of vpenso's exporter."""

from __future__ import annotations

import sys
from pathlib import Path


def exporter_command(address: str, clients: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "gpuscope", "agent", "--as", "slurm-exporter"),
        *(f"-listen-address={address}", "--slurm-bin-dir", str(clients)),
    ]
