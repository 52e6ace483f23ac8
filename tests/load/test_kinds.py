"""The kernels' text: the work a kernel is counted with is the work in its loop."""

from __future__ import annotations

import pytest

from gpuscope.vendors.nvidia.load.kinds import KERNELS, KINDS, PROFTESTER_FIELDS, Kernel

OPERATIONS = {
    "fma.rn.f32 ": 2,
    "fma.rn.f64 ": 2,
    "fma.rn.f16x2 ": 4,
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 ": 2 * 16**3,
}


def loop(kernel: Kernel) -> list[str]:
    lines = [line.strip() for line in kernel.text.splitlines()]
    return lines[lines.index("repeat:") + 1 : lines.index("@%p bra repeat;")]


@pytest.mark.parametrize(
    "kernel", [one for one in KERNELS.values() if one.name != "memory"], ids=lambda one: one.name
)
def test_a_repetition_does_what_it_is_counted_with(kernel: Kernel) -> None:
    done = sum(each for line in loop(kernel) for word, each in OPERATIONS.items() if line.startswith(word))
    assert done == kernel.operations


def test_the_memory_kernel_reads_16_bytes_a_time() -> None:
    loads = [line for line in loop(KERNELS["memory"]) if line.startswith("ld.global.v4.u32")]
    assert len(loads) == 4
    assert KERNELS["memory"].operations == 16


def test_chains_begin_with_different_values() -> None:
    """The compiler would merge equal chains, and the load would be a fraction of what is counted."""
    for name in ("fp32", "fp64", "fp16"):
        starts = [
            line.split(", ")[1]
            for line in KERNELS[name].text.splitlines()
            if line.strip().startswith("mov.") and " %x" in line
        ]
        assert len(set(starts)) == len(starts) == 8


def test_every_profiling_field_of_dcgmproftester_has_a_kind() -> None:
    assert set(PROFTESTER_FIELDS) == set(range(1001, 1013))
    assert PROFTESTER_FIELDS[1004] is KINDS["tensor"]
