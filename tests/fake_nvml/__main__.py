"""Run a program on a fake driver: `python -m tests.fake_nvml --model A100 --gpus 4 -- nvitop -1`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fake_nvml.driver import FakeDriver, Process
from tests.fake_nvml.models import MODELS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fake_nvml", description="Run a program on a fake NVIDIA driver."
    )
    parser.add_argument("--model", choices=MODELS, default="H100")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="the first N GPUs work")
    parser.add_argument("--latency", action="store_true", help="calls take about as long as real ones")
    parser.add_argument("command", nargs="+")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        driver = FakeDriver(Path(folder) / "state")
        driver.gpus(wanted.gpus, wanted.model)
        for gpu in range(wanted.busy):
            driver.busy(gpu, 90 - gpu, ago=60)
            driver.set(gpu, temperature=60 + gpu, memory_used=driver.cards[gpu].numbers["memory_total"] // 2)
            driver.processes(gpu, [Process(os.getpid(), memory=1 << 30)])
        if wanted.latency:
            driver.realistic_latency()
        return subprocess.run(wanted.command, env={**os.environ, **driver.env}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
