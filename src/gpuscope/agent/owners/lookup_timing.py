"""How often the workers of lookups read, and how long what they found counts."""

from __future__ import annotations

import math
from typing import Final

from gpuscope.agent.worker import Timing
from gpuscope.base.settings import Settings

KUBELET_GOOD_FOR_SECONDS: Final = 60.0


def kubelet_timing(settings: Settings) -> Timing:
    """For what the kubelet says: a kubelet that restarts must not make every pod disappear."""
    return Timing(
        interval=settings.kubelet_interval,
        deadline=KUBELET_GOOD_FOR_SECONDS,
        slack=0.5 * settings.interval,
        good_for=KUBELET_GOOD_FOR_SECONDS,
    )


def lasting_timing(settings: Settings, interval: float) -> Timing:
    """For facts that do not change: a process keeps its cgroup, a container its name, whatever fails later."""
    return Timing(
        interval=interval,
        deadline=max(5.0, 3 * settings.interval),
        slack=0.5 * settings.interval,
        good_for=math.inf,
    )
