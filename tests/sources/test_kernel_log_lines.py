from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.readings import ABSENT, Uuid
from gpuscope.model.vendor import KernelLogLine
from gpuscope.vendors.nvidia.vendor import MAX_MESSAGE_CHARACTERS, parse_kernel_line

# As drivers from 470 to 610 write them; the last ones as older drivers and as other tools quote them.
LINES = [
    ("NVRM: Xid (PCI:0000:8d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79, 0x8D),
    ("NVRM: Xid (PCI:0000:01:00): 31, pid=3134, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS", 31, 1),
    (
        "NVRM: Xid (PCI:0000:cb:00): 13, pid=79749, name=python3, Graphics SM Warp Exception on (GPC 7)",
        13,
        0xCB,
    ),
    (
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=pt_main_thread, Ch 01 caused by previous Xid 149",
        45,
        0xDC,
    ),
    ("NVRM: Xid (PCI:0000:02:00): 62, 023f0f30 00000000 00000000 202c0ffe", 62, 2),
    ("NVRM: Xid (PCI:0000:03:00): 145, RLW_SRC_TRACK Nonfatal XC0 i0 Link 02 (0x0 0x0)", 145, 3),
    ("NVRM: Xid (PCI:0000:04:00): 119, pid=77, name=a, Timeout after 6s of waiting for RPC response", 119, 4),
    ("NVRM: Xid (PCI:0000:05:00): 8, Channel 00000001", 8, 5),
    ("NVRM: Xid (PCI:0000:06:00 GPU-I:03): 94, pid=7194, Contained: CE User Channel (0x9). RST: No", 94, 6),
    ("NVRM: Xid (PCI:0000:07:00 GPU-I:03 GPU-CI:00): 43, pid=1, name=x, Ch 00000008", 43, 7),
    ("NVRM: Xid (PCI:0000:08:00): 63, Row Remapper: New row (0x000000039ad6) marked for remapping.", 63, 8),
    ("NVRM: Xid (PCI:0000:09:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)", 154, 9),
    ("NVRM: Xid (PCI:0000:0a:00.0): 94, GPU reset", 94, 10),
    ("NVRM: Xid (0000:0b:00): 14, Channel 00000001", 14, 11),
    ("NVRM: Xid (PCI:0000:0c:00): 48", 48, 12),
    ("NVRM: Xid (PCI:0000:0d:00): 79, ", 79, 13),
]


@pytest.mark.parametrize(("line", "xid", "bus"), LINES)
def test_every_form_of_the_line(line: str, xid: int, bus: int) -> None:
    found = parse_kernel_line(line)
    assert found is not None
    assert (found.code, found.pci_bus_id) == (str(xid), f"00000000:{bus:02X}:00.0")
    assert found.message == line.removeprefix("NVRM: ").rstrip()


def test_a_wide_pci_domain_as_virtual_machines_have_it() -> None:
    found = parse_kernel_line("NVRM: Xid (PCI:10001:00:1f): 79, GPU has fallen off the bus.")
    assert found is not None
    assert found.pci_bus_id == "00010001:00:1F.0"


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO",
        "NVRM: SXid (PCI:0000:c1:00.0): 28006, Data",
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:01:00): none",
        "NVRM: Xid (PCI:0000:01:00): 123456789, too large to be one",
        "NVRM: Xid (PCI:0000:01:00): 7.5, no",
        "NVRM: Xid (PCI:0000:zz:00): 79, x",
        "NVRM: Xid",
        'audit: comm="NVRM: Xid (PCI:0000:01:00): 79"',
        "someone[12]: NVRM: Xid (PCI:0000:01:00): 79, said by a process",
        "",
    ],
)
def test_other_lines_are_no_xid(line: str) -> None:
    assert parse_kernel_line(line) is None


def test_a_process_named_like_an_xid_changes_nothing() -> None:
    found = parse_kernel_line(
        "NVRM: Xid (PCI:0000:01:00): 31, pid=5, name=NVRM: Xid (PCI:0000:02:00): 79, Ch 1"
    )
    assert found is not None
    assert (found.code, found.pci_bus_id) == ("31", "00000000:01:00.0")


def test_the_line_that_names_a_gpu() -> None:
    found = parse_kernel_line("NVRM: GPU at PCI:0000:8d:00: GPU-44ec53bd-277c-984f-fa9f-cded30fbfd5d")
    assert found == KernelLogLine("00000000:8D:00.0", uuid=Uuid("GPU-44ec53bd-277c-984f-fa9f-cded30fbfd5d"))
    assert found.code is ABSENT
    assert parse_kernel_line("NVRM: GPU at PCI:0000:17:00.0 has fallen off the bus.") is None
    assert parse_kernel_line("NVRM: GPU at PCI:0000:8d:00: GPU-rubbish") is None


@given(
    domain=st.integers(0, 2**32 - 1),
    bus=st.integers(0, 255),
    device=st.integers(0, 31),
    mig=st.sampled_from(["", " GPU-I:05", " GPU-I:05 GPU-CI:01"]),
    xid=st.integers(0, 99_999),
    rest=st.text(),
)
def test_written_records_are_parsed_exactly(
    domain: int, bus: int, device: int, mig: str, xid: int, rest: str
) -> None:
    line = f"NVRM: Xid (PCI:{domain:04x}:{bus:02x}:{device:02x}{mig}): {xid}, {rest}"
    found = parse_kernel_line(line)
    assert found is not None
    assert (found.code, found.pci_bus_id) == (str(xid), f"{domain:08X}:{bus:02X}:{device:02X}.0")
    assert len(found.message) <= MAX_MESSAGE_CHARACTERS


@given(st.text() | st.text(st.sampled_from("NVRM: Xid(PC0123456789abcdef:.,)GU-I \n"), max_size=80))
def test_any_text_is_survived(text: str) -> None:
    parse_kernel_line(text)
    parse_kernel_line("NVRM: Xid (" + text)
    parse_kernel_line("NVRM: GPU at " + text)
