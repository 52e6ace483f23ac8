"""The reason why a scrape fails by its Content-Type; `test_against_prometheus.py` compares which ones fail."""

from __future__ import annotations

import pytest

from gpuscope.history.scrape.job_options import is_openmetrics


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("", "sending blank Content-Type"),
        ("  ", "sending blank Content-Type"),
        ("text/html", "unsupported Content-Type 'text/html'"),
        ("text", "cannot parse Content-Type 'text'"),
    ],
)
def test_the_reason_names_what_was_received(header: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        is_openmetrics(header, "")


def test_a_fallback_protocol_decides_for_a_missing_or_wrong_type() -> None:
    assert is_openmetrics("", "OpenMetricsText1.0.0")
    assert not is_openmetrics("text/html", "PrometheusText0.0.4")
