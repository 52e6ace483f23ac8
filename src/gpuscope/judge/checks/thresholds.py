"""Every number that a judgement compares with. Checks, states and findings read them; the page has none."""

from __future__ import annotations

from typing import Final

from gpuscope.agent.owners.gpu_work import WORKING_RATIO as WORKING_RATIO

STALE_SECONDS: Final = 30.0
"""Numbers older than this are not shown as current."""
MAX_GAP_SECONDS: Final = 30.0
"""Between two judgements of the fleet; in a longer gap something may have begun or ended unseen."""
AGENT_STALE_SECONDS: Final = 60.0
GONE_SHOWN_SECONDS: Final = 86400.0
"""How long a node or target that stopped answering stays in the picture."""
RECENT_XID_SECONDS: Final = 3600.0
"""How long an XID is a finding after it happened: who arrives later still sees it."""
XID_ALERT_SECONDS: Final = 600.0
"""How long the alerts over other exporters fire, which only keep the last XID."""
SOURCE_SLOW_SECONDS: Final = 5.0
LOST_SECONDS: Final = 60.0
"""A GPU that does not answer for this long becomes an alert: a driver under load may pause."""

HELD_IDLE_SECONDS: Final = 3600.0
"""A GPU held idle for this long becomes an alert."""
IDLE_FINDING_SECONDS: Final = 900.0
"""A GPU held idle for this long becomes a finding: a shorter pause is normal work."""
WAITING_RATIO: Final = 0.6
"""A GPU that is busy for less than this share of a minute waits for something."""
FULL_RATIO: Final = 0.9
IO_WAIT_RATIO: Final = 0.3
NETWORK_WAIT_RATIO: Final = 0.5
BUSY_THREAD_RATIO: Final = 0.9
RANK_WAITS_POWER_SHARE: Final = 0.35
"""Of the power limit. A kernel that spins in a collective draws 0.2 to 0.3 on data centre cards."""
RANK_WORKS_POWER_SHARE: Final = 0.5
HUNG_SECONDS: Final = 600.0
FAILED_JOBS: Final = 3
"""Jobs that failed on one GPU: from this number on it is perhaps the GPU."""
FAILED_JOBS_USERS: Final = 2
"""Of at least so many users: one user's own mistake fails on every GPU."""
STARTING_SECONDS: Final = 600.0
"""A job or process that has just started loads its program, its data and its compiled kernels."""
LOADING_BYTES_PER_SECOND: Final = 1e6
"""A process that reads less than this loads no training data."""
LOADING_CHILDREN_RATIO: Final = 0.5
"""Of one core: what the workers of a data loader use at least."""
NODE_CLOCK_SECONDS: Final = 10.0
"""Between a node's clock and the server's: more is not the time that a scrape takes."""
UNUSED_SECONDS: Final = 86400.0
LONG_RUNNING_SECONDS: Final = 7 * 86400.0
ORPHAN_MEMORY_BYTES: Final = 1e9
MEMORY_FULL_RATIO: Final = 0.98

HOT_MARGIN_CELSIUS: Final = 3.0
HOT_MEMORY_CELSIUS: Final = 95.0
"""For a card that does not say how hot its memory may be: the limit of HBM2e."""
FAN_STOPPED_CELSIUS: Final = 60.0
CORRECTED_ERRORS_PER_HOUR: Final = 600.0
"""DCGM's ten a minute."""
RETIRED_PAGES: Final = 60.0
"""NVIDIA replaces a card at 64."""
PCIE_LOADED_RATIO: Final = 0.3
"""From this utilization on a PCIe link runs at its full generation."""
PCIE_REPLAYS_PER_MINUTE: Final = 8.0
NVLINK_RECOVERIES_PER_HOUR: Final = 2.0
"""A link that recovered three times in 21 minutes failed five days later; one now and then is normal."""
LINK_FLAPS_PER_HOUR: Final = 3
"""A switch that is restarted takes its links down once or twice."""
LINK_ERRORS_PER_HOUR: Final = 60.0
LINK_ERRORS_PER_TEN_MINUTES: Final = 10.0
"""Now and 20 minutes ago: a cable that is touched makes many errors at once, and then none."""
POWER_LIMIT_SHARE: Final = 0.95
SLOW_SIBLING_SHARE: Final = 0.85

HOST_MEMORY_RATIO: Final = 0.10
DISK_RATIO: Final = 0.10
CLOCK_SKEW_SECONDS: Final = 0.05
