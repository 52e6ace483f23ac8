"""The limits of queries, from a flag to the engine, and what the API shows of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import load_settings
from gpuscope.cli.wiring.embedded_server import build_engine, shown_flags
from gpuscope.history.store import Store

FLAGS = {
    "query_max_samples": "1000",
    "query_timeout": "1m30s",
    "query_lookback": "15s",
    "query_max_concurrency": "3",
}


def test_the_engine_has_what_was_set(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        engine = build_engine(load_settings(FLAGS, {}), store)
    finally:
        store.close()
    assert (engine.max_samples, engine.timeout_seconds, engine.lookback_ms) == (1000, 90.0, 15_000)


def test_flags_are_shown_by_prometheus_names_and_by_ours() -> None:
    shown = shown_flags(load_settings({**FLAGS, "retention": "9d"}, {}), ("127.0.0.1", 9470))
    assert shown["query.timeout"] == shown["query-timeout"] == "1m30s"
    assert shown["query.lookback-delta"] == shown["query-lookback"] == "15s"
    assert shown["query.max-samples"] == shown["query-max-samples"] == "1000"
    assert shown["query.max-concurrency"] == shown["query-max-concurrency"] == "3"
    assert shown["storage.tsdb.retention.time"] == "9d"
    assert shown["web.listen-address"] == "127.0.0.1:9470"


def test_no_secret_is_shown() -> None:
    secrets = {"remote_write": "http://me:secret@a/api/v1/write", "store": "http://me:secret@b"}
    assert "secret" not in str(shown_flags(load_settings(secrets, {}), ("127.0.0.1", 9470)))


@pytest.mark.parametrize("name", FLAGS)
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: '0' is not"):
        load_settings({name: "0"}, {})
