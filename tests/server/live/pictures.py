"""The live picture of a list of samples and of what the checks say of them, as one call."""

from __future__ import annotations

from collections.abc import Iterable

from gpuscope.health.facts import Sample
from gpuscope.health.missing import NOTHING_MISSING, Missing
from gpuscope.server.api_types.live_json import LivePicture
from gpuscope.server.live.fleet_judge import FleetJudge
from gpuscope.server.live.fleet_samples import by_node
from gpuscope.server.live.picture import live_picture
from gpuscope.server.live.sample_judge import SampleJudge


def fleet_state(
    samples: Iterable[Sample],
    *,
    now: float,
    source: str,
    missing: Missing = NOTHING_MISSING,
    stored: Iterable[Sample] = (),
) -> LivePicture:
    """`stored` are the samples over which the checks are evaluated, where they are others."""
    listed, judgement = list(samples), SampleJudge()
    judgement.add(list(stored) or listed, now)
    return live_picture(FleetJudge(judgement).judge(by_node(listed), missing, now), source)
