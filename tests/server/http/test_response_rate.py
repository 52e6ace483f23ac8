"""The rate of a client is measured for each response, not over the connection."""

from __future__ import annotations

from gpuscope.base.limits import Limits
from gpuscope.serve.http.connection_limits import ResponseRate

LIMITS = Limits(client_stall_timeout=10.0, min_response_rate=1000)
ENOUGH = 10_000


def test_bytes_of_an_earlier_response_do_not_count() -> None:
    rate = ResponseRate(written=50 * ENOUGH)
    rate.begin_response()
    rate.written += 2 * ENOUGH
    assert not rate.is_fast_enough(unsent=2 * ENOUGH - 10, now=10.0, limits=LIMITS)
    assert rate.is_fast_enough(unsent=ENOUGH, now=10.0, limits=LIMITS)
    assert not rate.is_fast_enough(unsent=ENOUGH, now=20.0, limits=LIMITS), "nothing since the last window"


def test_short_waits_add_up_to_a_window() -> None:
    rate = ResponseRate()
    rate.begin_response()
    assert rate.begin_wait(100.0, LIMITS) == 110.0
    rate.end_wait(104.0)
    assert rate.begin_wait(200.0, LIMITS) == 206.0
    rate.begin_response()
    assert rate.begin_wait(300.0, LIMITS) == 310.0
