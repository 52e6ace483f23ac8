"""The live picture of a list of samples, as one call."""

from __future__ import annotations

from collections.abc import Iterable

from gpuscope.health.facts import Sample
from gpuscope.health.missing import NOTHING_MISSING, Missing
from gpuscope.server.api_types.live_json import LivePicture
from gpuscope.server.live.fleet_judge import FleetJudge
from gpuscope.server.live.fleet_samples import by_node
from gpuscope.server.live.picture import live_picture


def fleet_state(
    samples: Iterable[Sample], *, now: float, source: str, missing: Missing = NOTHING_MISSING
) -> LivePicture:
    return live_picture(FleetJudge().judge(by_node(samples), missing, now), source)
