"""The XID table: complete, consistent, and every metric it points at exists."""

from __future__ import annotations

import pytest

from gpuscope.agent.families.native.table import NATIVE_METRICS
from gpuscope.judge.checks.gpu_checks import HINDERING
from gpuscope.model.vendor import ErrorAction, GpuError
from gpuscope.vendors.nvidia.nvidia_values import THROTTLE_BITS
from gpuscope.vendors.nvidia.vendor import THROTTLES
from gpuscope.vendors.nvidia.xids import (
    APPLICATION_XIDS,
    CATALOGUE,
    DRIVER_XIDS,
    HARDWARE_XIDS,
    NVLINK_XIDS,
    XidClass,
)

XIDS = {int(code): row for code, row in CATALOGUE.errors.items()}


def test_every_xid_of_the_public_catalogue_is_there() -> None:
    listed = {
        8, 11, 13, 14, 25, 31, 32, *range(37, 42), *range(43, 47), 48, 54, *range(60, 65), *range(66, 73),
        *range(74, 81), *range(82, 87), 88, 89, *range(92, 108), 109, 110, *range(119, 122), *range(126, 138),
        *range(139, 173),
    }  # fmt: skip
    assert set(XIDS) == listed


def test_the_groups_do_not_overlap_and_are_in_the_table() -> None:
    groups = (HARDWARE_XIDS, NVLINK_XIDS, DRIVER_XIDS)
    assert sum(map(len, groups)) == len(frozenset.union(*groups))
    assert frozenset.union(*groups) <= set(XIDS)
    assert not any(XIDS[code].is_application for code in frozenset.union(*groups))


@pytest.mark.parametrize("row", XIDS.values(), ids=lambda row: str(row.code))
def test_a_row_says_what_it_means_and_what_to_do(row: object) -> None:
    assert isinstance(row, GpuError)
    assert row.meaning.endswith(".")
    assert row.next_step
    metrics = {metric.name for metric in NATIVE_METRICS}
    for name in row.related:
        code = name.removeprefix("xid ")
        assert (int(code) in XIDS) if code != name else (name in metrics), name


IGNORE, RESTART_APP, RESET_GPU = ErrorAction.NONE, ErrorAction.RESTART_APPLICATION, ErrorAction.RESET_GPU
IMMEDIATE: dict[ErrorAction, tuple[int, ...]] = {
    RESTART_APP: (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89,
                  94, *range(96, 106), *range(126, 136), 139),
    IGNORE: (14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 121, 141, 147, 148, 152, 153, 157, 160, 161),
    RESET_GPU: (46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 144, 145, 146, 149, 150, 155, 156,
                158, 159),
    ErrorAction.REBOOT_NODE: (79, 151),
    ErrorAction.CHECK_HARDWARE: (54,),
    ErrorAction.UPDATE_SOFTWARE: (78,),
    ErrorAction.CONTACT_SUPPORT: (142,),
    ErrorAction.FOLLOW_VERDICT: (154,),
}  # fmt: skip
"""NVIDIA's immediate action. Its workflows are here as what they end with: 48, 74 and 144 to 150 with a reset.
It has none for 162 to 172; 43 and 137 it ignores, because the GPU is healthy: we tell the program's owner."""


def test_the_action_is_that_of_nvidia_s_catalogue() -> None:
    published = {code: action for action, codes in IMMEDIATE.items() for code in codes}
    assert {code: XIDS[code].action for code in published} == published
    assert set(XIDS) - set(published) == {43, 45, 61, 137, *range(162, 173)}


def test_the_step_of_these_says_what_the_catalogue_says() -> None:
    assert "reset the GPU" in XIDS[143].next_step
    assert "reboot" in XIDS[143].next_step
    assert "reset the GPU" in XIDS[109].next_step
    assert "undo the last hardware change" in XIDS[110].next_step


def test_a_contained_error_is_neither_a_program_s_mistake_nor_a_reason_to_drain() -> None:
    row = XIDS[94]
    assert (row.is_application, row.is_contained, row.blames_gpu) == (False, True, False)
    assert "drain" not in row.next_step
    assert 94 not in APPLICATION_XIDS | HARDWARE_XIDS


def test_an_xid_that_nvidia_ignores_is_no_critical_alert() -> None:
    assert not [code for code in HARDWARE_XIDS | NVLINK_XIDS | DRIVER_XIDS if XIDS[code].action is IGNORE]


def test_a_lost_gpu_is_not_told_to_reset() -> None:
    assert CATALOGUE.explain("79").action is ErrorAction.REBOOT_NODE
    assert "power-cycle" in CATALOGUE.explain("79").next_step


def test_a_number_outside_the_catalogue_says_so() -> None:
    assert CATALOGUE.explain("999").error_class == XidClass.UNKNOWN
    assert "not in NVIDIA's public catalogue" in CATALOGUE.explain("999").meaning
    assert "unused" in CATALOGUE.explain("2").meaning


def test_every_throttle_reason_has_a_row() -> None:
    assert {row.reason for row in THROTTLES} == set(THROTTLE_BITS)
    assert "gpu_idle" not in HINDERING
