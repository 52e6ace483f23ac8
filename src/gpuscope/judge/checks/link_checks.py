"""What can be wrong with the InfiniBand and RoCE adapters that feed GPUs: down, slow, flapping, with errors.

Only rails are judged: adapters next to a GPU. A port that has never been up is not cabled, and accuses nobody.
"""

from __future__ import annotations

from typing import Final

from gpuscope.judge.checks.check import Check, Severity, Subject
from gpuscope.judge.checks.thresholds import (
    LINK_ERRORS_PER_HOUR,
    LINK_ERRORS_PER_TEN_MINUTES,
    LINK_FLAPS_PER_HOUR,
)

_EARLIER: Final = ("1h", "8h", "1d")
_RAIL: Final = "gpuscope_infiniband_rail_info"
_UP: Final = "gpuscope_infiniband_port_up"
_RATE: Final = "gpuscope_infiniband_port_rate_bytes_per_second"
_ERRORS: Final = "gpuscope_infiniband_port_errors_total"
_WAS_UP: Final = " or ".join(f"{_UP} offset {ago} == 1" for ago in _EARLIER)
_RAIL_RATE: Final = (
    f"(({_RATE} and on (instance, device) {_RAIL}) * on (instance, device, port) group_left (board_id) "
    "max by (instance, device, port, board_id) (gpuscope_infiniband_port_info))"
)
_SLOWER_THAN_OTHERS: Final = (
    f"{_RAIL_RATE} < on (instance, board_id) group_left () quantile by (instance, board_id) (0.5, {_RAIL_RATE})"
)
_SLOWER_THAN_BEFORE: Final = " or ".join(f"{_RATE} < {_RATE} offset {ago}" for ago in _EARLIER)
_FEWER_LANES: Final = "gpuscope_infiniband_pcie_link_width < gpuscope_infiniband_pcie_link_width_max"


def _of_rails(expression: str) -> str:
    """The GPUs that an adapter feeds; the value is the expression's."""
    return f"{_RAIL} * on (instance, device) group_left () (max by (instance, device) ({expression}))"


LINK_CHECKS: Final = (
    Check(
        kind="rail_down",
        alert="RailDown",
        subject=Subject.GPU,
        severity=Severity.CRITICAL,
        promql=(
            f"{_RAIL} and on (instance, device) "
            f"({_UP} == 0 and (gpuscope_infiniband_link_downs_total > 0 or {_WAS_UP}))"
        ),
        for_seconds=60,
        inhibited_by=("node_down",),
        meaning="The InfiniBand or RoCE port next to the GPU is down, and was up before.",
        next_step="check cable, transceiver and switch port; ibstat shows the state of the port",
    ),
    Check(
        kind="rail_slow",
        alert="RailSlow",
        subject=Subject.GPU,
        severity=Severity.WARNING,
        promql=(
            f"{_RAIL} and on (instance, device) "
            f"({_SLOWER_THAN_OTHERS} or {_SLOWER_THAN_BEFORE} or {_FEWER_LANES})"
        ),
        for_seconds=300,
        inhibited_by=("node_down", "rail_down"),
        meaning="The port next to the GPU runs at a lower rate than its siblings or than before, or its "
        "adapter uses fewer PCIe lanes than it has.",
        next_step="reseat cable and transceiver; check the switch port's speed and the adapter's slot",
    ),
    Check(
        kind="link_flaps",
        alert="LinkFlaps",
        subject=Subject.GPU,
        severity=Severity.WARNING,
        promql=_of_rails(f"increase(gpuscope_infiniband_link_downs_total[1h]) > {LINK_FLAPS_PER_HOUR - 0.5:g}"),
        inhibited_by=("node_down",),
        meaning="The link next to the GPU goes down and comes back again and again: jobs fail or hang.",
        next_step="replace the cable or transceiver; until then keep large jobs off the node",
    ),
    Check(
        kind="link_errors",
        alert="LinkErrors",
        subject=Subject.GPU,
        severity=Severity.WARNING,
        promql=_of_rails(
            f"increase({_ERRORS}[1h]) > {LINK_ERRORS_PER_HOUR:g} "
            f"and increase({_ERRORS}[10m]) > {LINK_ERRORS_PER_TEN_MINUTES:g} "
            f"and increase({_ERRORS}[10m] offset 20m) > {LINK_ERRORS_PER_TEN_MINUTES:g}"
        ),
        for_seconds=600,
        inhibited_by=("node_down", "rail_down", "link_flaps"),
        meaning="The link next to the GPU has errors all the time.",
        next_step="clean or replace cable and transceiver; perfquery shows the counters of both ends",
    ),
)
