"""Every way a scheduler spells a device, matched with the GPUs that are visible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.allocation_matching import DeviceIndex, id_forms
from gpuscope.model.readings import ABSENT, Device, Uuid
from gpuscope.vendors.intel.intel_values import IntelValues
from gpuscope.vendors.nvidia.nvidia_values import make_device, make_instance

FIRST = "GPU-5a5a7118-e550-79a1-597e-7631e126c57a"
SPLIT = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
MIG_7 = "MIG-42f0f413-f7b0-58cc-aced-c1d1fb54db26"
MIG_12 = "MIG-0ba78a14-3ac2-55ab-8a26-8ab5bb1c1a5b"
ARC = Uuid("GPU-6ace35b239012369")

# nvidia-smi's order (index) and the device files' (minor) are not the same here, as on many real machines.
DEVICES = (
    make_device(uuid=Uuid(FIRST), index=0, minor_number=1, pci_bus_id="00000000:C5:00.0"),
    make_device(
        uuid=Uuid(SPLIT),
        index=1,
        minor_number=0,
        pci_bus_id="00000000:8D:00.0",
        instances=(
            make_instance(uuid=Uuid(MIG_7), gpu_instance=7, compute_instance=0, profile="2g.47gb"),
            make_instance(uuid=Uuid(MIG_12), gpu_instance=12, compute_instance=0, profile="1g.24gb"),
        ),
    ),
    Device(
        uuid=ARC, index=2, vendor="intel", minor_number=2, vendor_values=IntelValues(device_ids={"card7": ARC})
    ),
)

FORMS = {
    FIRST: (FIRST, ABSENT, ABSENT),
    MIG_7: (SPLIT, MIG_7, ABSENT),
    f"MIG-{SPLIT}/12/0": (SPLIT, MIG_12, ABSENT),
    f"MIG-{SPLIT}/12/0::1": (SPLIT, MIG_12, "1"),
    f"{FIRST}::3": (FIRST, ABSENT, "3"),
    f"{MIG_7}::7": (SPLIT, MIG_7, "7"),
    "nvidia1": (FIRST, ABSENT, ABSENT),
    "nvidia0/gi7": (SPLIT, MIG_7, ABSENT),
    "nvidia0/gi7/vgpu0": (SPLIT, MIG_7, "0"),
    "nvidia1/vgpu1": (FIRST, ABSENT, "1"),
    f"{FIRST}-0": (FIRST, ABSENT, "0"),
    f"{FIRST}-9": (FIRST, ABSENT, "9"),
    "gpu-1": (FIRST, ABSENT, ABSENT),
    "gpu-0-mig-2g47gb-14-0": (SPLIT, MIG_7, ABSENT),
    "gpu-0-mig-3g71gb-9-0": (SPLIT, ABSENT, ABSENT),
    "0000:c5:00.0": (FIRST, ABSENT, ABSENT),
    "1": (FIRST, ABSENT, ABSENT),
    "0.7": (SPLIT, MIG_7, ABSENT),
    "card7-1": (ARC, ABSENT, "1"),
}
UNKNOWN = (
    "GPU-00000000-0000-0000-0000-000000000000",
    "GPU-00000000-0000-0000-0000-000000000000::1",
    "MIG-00000000-0000-0000-0000-000000000000",
    f"MIG-{SPLIT}/3/0",
    "nvidia9",
    "nvidia0/gi3",
    "gpu-vfio-0",
    "gpu-9-mig-1g24gb-1-0",
    "amdgpu_xcp.7",
    "0000:ff:00.0",
    "0.99",
    "",
    "nvidia1/vgpu1/extra",
)


@pytest.mark.parametrize("device_id", FORMS)
def test_a_form(device_id: str) -> None:
    target = DeviceIndex(DEVICES).find(device_id)
    assert target is not None
    instance = ABSENT if target.instance is None else target.instance.uuid
    assert (target.gpu.uuid, instance, target.replica) == FORMS[device_id]


@pytest.mark.parametrize("device_id", UNKNOWN)
def test_an_id_nobody_here_answers_to(device_id: str) -> None:
    assert DeviceIndex(DEVICES).find(device_id) is None


def test_every_row_of_the_table_is_shown_by_a_form() -> None:
    shown = {row.used_by for row, pattern in id_forms() for form in FORMS if pattern.fullmatch(form)}
    assert shown == {row.used_by for row, _ in id_forms()}


def test_without_minor_numbers_the_index_has_to_do() -> None:
    target = DeviceIndex([make_device(uuid=Uuid(FIRST), index=3)]).find("nvidia3")
    assert target is not None
    assert target.gpu.uuid == FIRST


@given(st.one_of(st.text(), st.from_regex(r"(GPU|MIG|nvidia|gpu)-?[0-9a-f:/.g-]{0,30}", fullmatch=True)))
def test_any_text(device_id: str) -> None:
    DeviceIndex(DEVICES).find(device_id)
