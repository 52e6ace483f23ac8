"""The live picture of a list of samples and of what the checks say of them, as one call."""

from __future__ import annotations

from collections.abc import Iterable

from gpuscope.judge.checks.facts import NOTHING_MISSING, Missing, Sample
from gpuscope.serve.api_types.live_json import LivePicture
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.fleet_samples import by_node
from gpuscope.serve.live.picture import live_picture
from gpuscope.serve.live.sample_judge import SampleJudge


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
