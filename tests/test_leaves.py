"""The shared leaf modules."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.anchored_regex import compile_anchored
from gpuscope.base.episode_log import MAX_LINES, EpisodeLog
from gpuscope.base.files import PRIVATE, WORLD_READABLE, write_atomically
from gpuscope.base.time_text import parse_rfc3339, to_rfc3339
from gpuscope.base.varint import VarintError, encode_varint, read_varint

log = logging.getLogger("gpuscope.test")


def test_an_episode_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    times = iter((10.0, 75.0))
    episode = EpisodeLog(log, "source x", clock=lambda: next(times))
    episode.succeeded()
    for _ in range(5):
        episode.failed("no answer")
    episode.succeeded()
    episode.succeeded()
    assert caplog.messages == ["source x: no answer", "source x: works again, after 65 s"]


def test_reasons_that_change_each_time_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    episode = EpisodeLog(log, "nvidia-smi")
    for number in range(1000):
        episode.failed(f"rubbish {number}")
    assert len(caplog.messages) == MAX_LINES
    assert caplog.messages[-1].endswith("further reasons are not logged until it works again")
    assert episode.why == "rubbish 999"


def test_a_kind_of_failure_is_logged_once_in_an_episode(caplog: pytest.LogCaptureFixture) -> None:
    episode = EpisodeLog(log, "nvidia-smi")
    for number in range(3):
        episode.failed(f"exit code 9: {number}", kind=9)
        episode.failed(f"exit code 2: {number}", kind=2)
    assert caplog.messages == ["nvidia-smi: exit code 9: 0", "nvidia-smi: exit code 2: 0"]
    episode.succeeded()
    episode.failed("exit code 9: again", kind=9)
    assert caplog.messages[-1] == "nvidia-smi: exit code 9: again"


@pytest.mark.parametrize("mode", [PRIVATE, WORLD_READABLE])
def test_a_file_is_replaced_whole_with_its_mode(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "x.prom"
    target.write_text("old")
    before = os.umask(0o077)
    try:
        write_atomically(target, b"new", mode=mode)
    finally:
        os.umask(before)
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == mode
    assert [path.name for path in tmp_path.iterdir()] == ["x.prom"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()  # a folder cannot be replaced by a file
    with pytest.raises(OSError, match="directory"):
        write_atomically(target, b"new", mode=PRIVATE)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@given(st.integers(min_value=-(2**63), max_value=2**64 - 1), st.binary(max_size=4))
def test_a_varint_round_trip(value: int, rest: bytes) -> None:
    data = encode_varint(value)
    assert read_varint(data + rest, 0, len(data)) == (value % 2**64, len(data))


@given(st.binary(max_size=12))
def test_any_bytes_are_a_varint_or_an_error(data: bytes) -> None:
    try:
        value, at = read_varint(data, 0, len(data))
    except VarintError:
        return
    assert 0 <= value < 2**64
    assert 0 < at <= len(data)


def test_a_varint_does_not_read_past_its_end() -> None:
    with pytest.raises(VarintError, match="end inside"):
        read_varint(b"\x80\x01", 0, 1)
    with pytest.raises(VarintError, match="longer than 64 bits"):
        read_varint(b"\xff" * 11, 0, 11)


def test_times_are_written_and_read() -> None:
    assert to_rfc3339(0) == "1970-01-01T00:00:00Z"
    assert to_rfc3339(1.5, "milliseconds") == "1970-01-01T00:00:01.500Z"
    assert parse_rfc3339("1970-01-01T01:00:01.5+01:00") == 1.5
    assert parse_rfc3339("1970-01-01T00:00:00") == 0
    with pytest.raises(ValueError, match="hour"):
        parse_rfc3339("1970-01-01T24:00:00Z")


def test_a_pattern_is_about_the_whole_value() -> None:
    assert compile_anchored("a.c|b").fullmatch("a\nc")
    assert not compile_anchored("a|b").fullmatch("ab")
    for wrong in ("a)|(?:b", "(", "\udcff"):
        with pytest.raises(ValueError, match=r"\w"):
            compile_anchored(wrong)
