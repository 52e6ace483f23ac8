"""The XID table: complete, consistent, and every metric it points at exists."""

from __future__ import annotations

import pytest

from gpuscope.health.throttles import HINDERING, THROTTLES
from gpuscope.health.xids import (
    DRIVER_XIDS,
    HARDWARE_XIDS,
    NVLINK_XIDS,
    XIDS,
    XidAction,
    XidClass,
    explain_xid,
)
from gpuscope.metrics.families.native.table import NATIVE_METRICS
from gpuscope.readings.throttle import THROTTLE_REASONS


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
    from gpuscope.health.xids import Xid

    assert isinstance(row, Xid)
    assert row.meaning.endswith(".")
    assert row.next_step
    metrics = {metric.name for metric in NATIVE_METRICS}
    for name in row.related:
        code = name.removeprefix("xid ")
        assert (int(code) in XIDS) if code != name else (name in metrics), name


def test_a_lost_gpu_is_not_told_to_reset() -> None:
    assert explain_xid(79).action is XidAction.REBOOT_NODE
    assert "power-cycle" in explain_xid(79).next_step


def test_a_number_outside_the_catalogue_says_so() -> None:
    assert explain_xid(999).xid_class is XidClass.UNKNOWN
    assert "not in NVIDIA's public catalogue" in explain_xid(999).meaning
    assert "unused" in explain_xid(2).meaning


def test_every_throttle_reason_has_a_row() -> None:
    assert set(THROTTLES) == set(THROTTLE_REASONS)
    assert "gpu_idle" not in HINDERING
