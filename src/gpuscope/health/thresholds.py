"""Every number that a judgement compares with. Page, alerts, doctor and reports take them from here."""

from __future__ import annotations

from typing import Final

WORKING_RATIO: Final = 0.01
"""From here on a GPU does something: below one percent it is a cursor that blinks."""
IDLE_RATIO: Final = 0.05
"""Below this share of a longer time nobody would say that a GPU was used."""
BUSY_RATIO: Final = 0.5

STALE_SECONDS: Final = 30.0
"""Numbers older than this are not shown as current."""
AGENT_STALE_SECONDS: Final = 60.0
GONE_SHOWN_SECONDS: Final = 86400.0
"""How long a node or target that stopped answering stays in the picture."""
RECENT_XID_SECONDS: Final = 3600.0
"""How long an XID counts as news: long enough for somebody to see it."""
SOURCE_SLOW_SECONDS: Final = 5.0

HELD_IDLE_SECONDS: Final = 3600.0
LONG_RUNNING_SECONDS: Final = 7 * 86400.0
ORPHAN_MEMORY_BYTES: Final = 1e9
MEMORY_FULL_RATIO: Final = 0.98

HOT_MARGIN_CELSIUS: Final = 3.0
FAN_STOPPED_CELSIUS: Final = 60.0
CORRECTED_ERRORS_PER_HOUR: Final = 600.0
"""DCGM's ten a minute."""
RETIRED_PAGES: Final = 60.0
"""NVIDIA replaces a card at 64."""
PCIE_REPLAYS_PER_MINUTE: Final = 8.0
POWER_LIMIT_SHARE: Final = 0.95
SLOW_SIBLING_SHARE: Final = 0.85

HOST_MEMORY_RATIO: Final = 0.10
DISK_RATIO: Final = 0.10
CLOCK_SKEW_SECONDS: Final = 0.05
