"""Which files the agent opens on a machine with AMD's GPUs: never `/dev/kfd`, never `pcie_bw`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.vendors.amd.families import UNIQUE_ID, add_mi300x, add_rx7900, gpu_id_of
from tests.vendors.amd.trees import GIB, AmdMachine

WATCH = """
import json, sys
opened = set()

def hook(event, arguments):
    if event in ("open", "os.listdir", "os.open") and isinstance(arguments[0], str):
        opened.add(arguments[0])

sys.addaudithook(hook)
from gpuscope.cli import main
try:
    code = main(sys.argv[2:])
finally:
    with open(sys.argv[1], "w") as file:
        json.dump(sorted(opened), file)
sys.exit(code)
"""


def test_the_agent_opens_neither_kfd_nor_what_waits(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    machine.add_cpu_node()
    add_mi300x(machine).write("pcie_bw", "1 2 256\n")
    add_mi300x(machine, "0000:c2:00.0", unique_id=UNIQUE_ID + 1)
    add_rx7900(machine)
    machine.add_process(100)
    machine.add_kfd_process(100, {gpu_id_of(0): GIB})
    answer = tmp_path / "opened.json"
    done = subprocess.run(
        [
            sys.executable, "-c", WATCH, str(answer), "agent", "--once", "--families", "native",
            "--path-sysfs", str(machine.sys), "--path-procfs", str(machine.proc), "--source", "amdgpu",
        ],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 'gpuscope_process_memory_bytes{gpu="1"' in done.stdout
    opened = json.loads(answer.read_text())
    assert any(path.endswith("/gpu_metrics") for path in opened)
    assert any("/class/kfd/kfd/proc/100" in path for path in opened)
    assert [path for path in opened if path.startswith("/dev/") and path != "/dev/kmsg"] == []
    assert [path for path in opened if path.endswith("pcie_bw")] == []
