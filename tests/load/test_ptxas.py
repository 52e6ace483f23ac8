"""NVIDIA's own assembler and disassembler, from PyPI: the intended instructions reach every architecture."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gpuscope.vendors.nvidia.load.kinds import KERNELS

pytestmark = pytest.mark.slow

PACKAGES = ("nvidia-cuda-nvcc==13.*", "nvidia-cuda-nvdisasm==13.*", "nvidia-cuda-nvcc-cu12==12.9.*")
NEWER = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121")
INSTRUCTIONS = {"tensor": "HMMA", "fp32": "FFMA", "fp64": "DFMA", "fp16": "HFMA2", "memory": "LDG"}
# In one repetition. A wmma is two HMMA from Ampere on and four on Turing.
LEAST = {"tensor": 32, "fp32": 64, "fp64": 64, "fp16": 64, "memory": 4}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        *PACKAGES,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"ptxas: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    return folder / "nvidia"


def assemble(ptxas: Path, name: str, architecture: str, folder: Path) -> Path:
    source, target = folder / f"{name}.ptx", folder / f"{name}.cubin"
    source.write_text(KERNELS[name].text)
    command = [str(ptxas), "-arch", architecture, str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return target


def loop_instructions(disassembly: str) -> Counter[str]:
    """Mnemonics between the target of the last backward branch and that branch."""
    lines = re.findall(
        r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", disassembly, re.MULTILINE
    )
    labels = {}
    for match in re.finditer(r"^(\.L\w+):\s*\n\s*/\*([0-9a-f]{4,})\*/", disassembly, re.MULTILINE):
        labels[match[1]] = int(match[2], 16)
    loops = []
    for address, mnemonic, rest in lines:
        target = re.search(r"\.L\w+", rest)
        if mnemonic.startswith("BRA") and target and target[0] in labels:
            start = labels[target[0]]
            if start < int(address, 16):
                loops.append((start, int(address, 16)))
    start, end = max(loops, key=lambda one: one[1] - one[0])
    return Counter(name.split(".")[0] for address, name, _ in lines if start <= int(address, 16) <= end)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("architecture", NEWER)
def test_the_loop_has_the_intended_instructions(
    tools: Path, tmp_path: Path, name: str, architecture: str
) -> None:
    binary = assemble(tools / "cu13/bin/ptxas", name, architecture, tmp_path)
    command = [str(tools / "cu13/bin/nvdisasm"), "-c", str(binary)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = loop_instructions(text)
    assert found[INSTRUCTIONS[name]] >= LEAST[name], found


@pytest.mark.parametrize("name", KERNELS)
def test_volta_assembles(tools: Path, tmp_path: Path, name: str) -> None:
    """Toolkits from 13 on know no Volta, so there is no disassembler for it."""
    assemble(tools / "cuda_nvcc/bin/ptxas", name, "sm_70", tmp_path)
