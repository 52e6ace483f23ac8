"""What a server's judgement of idle GPUs says at a moment."""

from __future__ import annotations

import asyncio

from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.checks.judgement import JudgedMoment
from gpuscope.judge.notify.idle_policy.idle_holders import DECIDING_CHECKS
from gpuscope.serve.live.judging import Judging


async def read_judged(engine: QueryEngine, at: float) -> JudgedMoment:
    """Evaluated at this moment by the server's evaluator, only with the checks that decide."""
    judging = Judging(engine, clock=lambda: at, checks=DECIDING_CHECKS)
    await judging.evaluate_due()
    assert judging.idle is not None
    return judging.idle


def judge_idle(engine: QueryEngine, at: float) -> JudgedMoment:
    return asyncio.run(read_judged(engine, at))
