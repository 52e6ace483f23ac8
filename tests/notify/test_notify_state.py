"""The file of silences and the notification log: damaged, read-only, and absent until it is needed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.judge.notify.alert_matchers import parse_matchers
from gpuscope.judge.notify.notification_log import LogEntry, LogKey
from gpuscope.judge.notify.notify_state import NotifyState
from gpuscope.judge.notify.silences import Silence, SilenceError

KEY = LogKey('{}:{a="é"}', "r", "webhook", 0)
ENTRY = LogEntry(1.5, 2.5, frozenset({"a", "b"}), frozenset(), {"a": 1.25})
SILENCE = Silence(parse_matchers("a=b"), 1.0, 2.0, "me", "why", id="x")


def test_nothing_is_created_before_the_first_change(tmp_path: Path) -> None:
    path = tmp_path / "data" / "n.sqlite"
    state = NotifyState(path)
    assert (state.silences(), state.entries()) == ([], [])
    assert not path.parent.exists()
    state.save_entry(KEY, ENTRY)
    assert path.stat().st_mode & 0o077 == 0
    assert NotifyState(path).entries() == [(KEY, ENTRY)]


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It does not have which alerts a message told in full: nobody was told then."""
    path = tmp_path / "n.sqlite"
    before = sqlite3.connect(path)
    before.execute(
        "create table log (group_key text, receiver text, integration text, position integer, "
        "sent_at real not null, expires_at real not null, firing text not null, resolved text not null, "
        "primary key (group_key, receiver, integration, position)) without rowid"
    )
    before.execute("insert into log values (?, ?, ?, ?, 1.5, 2.5, 'a b', '')", KEY)
    before.commit()
    before.close()
    state = NotifyState(path)
    assert state.entries() == [(KEY, replace(ENTRY, told_at={}))]
    state.save_entry(KEY, ENTRY)
    assert NotifyState(path).entries() == [(KEY, ENTRY)]


def test_a_damaged_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "n.sqlite"
    path.write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(UsageError, match="move the file away"):
        NotifyState(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which needs root")
def test_without_free_inodes_the_file_with_the_silences_stays(tmp_path: Path) -> None:
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "nr_inodes=8", "none", str(tmp_path)], check=False
    ).returncode:
        pytest.skip("no permission to mount")
    try:
        state = NotifyState(tmp_path / "n.sqlite")
        state.save_silence(SILENCE)
        state.close()
        with contextlib.suppress(OSError):
            for number in range(20):
                (tmp_path / str(number)).touch()
        with pytest.raises(UsageError, match="it has the silences, so keep it; free space and inodes"):
            NotifyState(tmp_path / "n.sqlite")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_where_nothing_can_be_written_the_log_goes_on_and_silences_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = NotifyState(Path("/proc/gpuscope/n.sqlite"))  # no folder can be made there, not even by root
    state.save_entry(KEY, ENTRY)
    state.save_entry(KEY, ENTRY)
    assert caplog.text.count("notification log") == 1
    with pytest.raises(SilenceError, match="could not be stored"):
        state.save_silence(SILENCE)
    state.close()
