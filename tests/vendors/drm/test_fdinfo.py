"""The text of an open card's `fdinfo`, from drivers of several vendors and times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuscope.vendors.drm.fdinfo import MAX_ENGINES, DrmClient, parse_fdinfo

HEAD = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t1239\n"

AMDGPU = (
    HEAD
    + """\
drm-driver:\tamdgpu
drm-client-id:\t4
drm-pdev:\t0000:04:00.0
pasid:\t32771
drm-total-gtt:\t2392 KiB
drm-resident-gtt:\t2392 KiB
drm-total-vram:\t50000 KiB
drm-shared-vram:\t31952 KiB
drm-resident-vram:\t44564 KiB
drm-total-cpu:\t0
drm-memory-vram:\t44564 KiB
amd-evicted-vram:\t0 KiB
drm-engine-gfx:\t19291217545 ns
drm-engine-enc_1:\t7 ns
"""
)

AMDGPU_6_1 = (
    HEAD
    + """\
pasid:\t32771
drm-driver:\tamdgpu
drm-pdev:\t0000:03:00.0
drm-client-id:\t550
drm-memory-vram:\t23048 KiB
drm-memory-gtt: \t80128 KiB
drm-memory-cpu: \t0 KiB
drm-engine-compute:\t31641274970 ns
"""
)

AMDGPU_5_15 = (
    HEAD
    + """\
pdev:\t0000:03:00.0
pasid:\t32770
vram mem:\t2048 kB
gtt mem:\t128 kB
cpu mem:\t0 kB
gfx0:\t3.50%
"""
)

XE = (
    HEAD
    + """\
drm-driver:\txe
drm-client-id:\t9
drm-pdev:\t0000:00:02.0
drm-total-system:\t0
drm-resident-vram0:\t12 MiB
drm-cycles-rcs:\t28257900
drm-total-cycles-rcs:\t7655183225
drm-engine-capacity-vcs:\t2
"""
)


def test_a_client_of_amdgpu() -> None:
    assert parse_fdinfo(AMDGPU) == DrmClient(
        driver="amdgpu",
        pdev="0000:04:00.0",
        client_id=4,
        engine_ns={"gfx": 19291217545, "enc_1": 7},
        memory_bytes={"gtt": 2392 << 10, "vram": 44564 << 10, "cpu": 0},
    )


def test_older_keys() -> None:
    client = parse_fdinfo(AMDGPU_6_1)
    assert client is not None
    assert client.key == ("0000:03:00.0", 550)
    assert client.memory_bytes == {"vram": 23048 << 10, "gtt": 80128 << 10, "cpu": 0}
    assert client.engine_ns == {"compute": 31641274970}


def test_the_format_before_the_common_one() -> None:
    assert parse_fdinfo(AMDGPU_5_15) == DrmClient(
        driver="amdgpu", pdev="0000:03:00.0", client_id=32770,
        memory_bytes={"vram": 2 << 20, "gtt": 128 << 10, "cpu": 0},
    )  # fmt: skip


def test_cycles_and_capacities_of_xe() -> None:
    client = parse_fdinfo(XE)
    assert client is not None
    assert client.engine_cycles == {"rcs": (28257900, 7655183225)}
    assert client.engine_capacity == {"vcs": 2}
    assert client.memory_bytes == {"vram0": 12 << 20, "system": 0}


def test_what_is_no_client() -> None:
    for text in (
        "", HEAD, "drm-driver:\tamdgpu\n", "drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\n",
        "drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t-1\n", "pdev:\t0000:03:00.0\n",
    ):  # fmt: skip
        assert parse_fdinfo(text) is None


def test_a_name_that_a_client_has_chosen_changes_nothing() -> None:
    text = AMDGPU + "drm-client-name:\tx\ndrm-client-id:\t99\ndrm-resident-vram:\t900 GiB\n"
    assert parse_fdinfo(text) == parse_fdinfo(AMDGPU)


def test_numbers_of_another_form_are_left_out() -> None:
    client = parse_fdinfo(
        "drm-driver:\tamdgpu\ndrm-pdev:\tp\ndrm-client-id:\t1\ndrm-engine-gfx:\t5 s\n"
        "drm-engine-dec:\tx ns\ndrm-resident-vram:\t5 parsecs\ndrm-resident-gtt:\t-1 KiB\n"
        "drm-resident-cpu:\t99999999999999999999999 KiB\n"
    )
    assert client == DrmClient(driver="amdgpu", pdev="p", client_id=1)


def test_endless_engines_are_bounded() -> None:
    many = "".join(f"drm-engine-e{number}:\t1 ns\n" for number in range(1000))
    client = parse_fdinfo(f"drm-driver:\tamdgpu\ndrm-pdev:\tp\ndrm-client-id:\t1\n{many}")
    assert client is not None
    assert len(client.engine_ns) == MAX_ENGINES


@given(st.text(max_size=400))
def test_no_text_does_harm(text: str) -> None:
    parse_fdinfo(text)
    parse_fdinfo(f"drm-driver:\tamdgpu\ndrm-pdev:\tp\ndrm-client-id:\t1\n{text}")
