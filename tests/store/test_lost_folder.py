"""A data folder that is deleted while the store runs."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from gpuscope.history.store import Store, StoreLockedError, StoreOptions
from gpuscope.history.store.schema import FILE_NAME
from tests.store.support import NOW, HandClock, contents_of, fill, labels, named, tick, timed_tick


def filled(folder: Path, clock: HandClock) -> Store:
    """Create a store with six hours of samples, the last of them unsealed."""
    store = Store(folder, clock=clock)
    fill(store, clock, 6)
    store.maintain()
    assert store.stats().blocks
    return store


def test_a_deleted_folder_is_reported_and_recreated_with_unsealed_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, clock = tmp_path / "data", HandClock()
    with filled(folder, clock) as store:
        unsealed = store.stats().head_samples
        (target,) = [state.id for state in store.contents.states()]
        ids = store.resolve(target, [labels("m0", node="a"), labels("new")]).tolist()
        store.select([], 0, 2**62)  # opens a reader's connection to the old file
        shutil.rmtree(folder)
        assert store.append(tick(target, clock.at, ids, [7.0, 8.0])).accepted == 2
        assert store.write_problem() == f"the data folder {folder} was deleted while it was in use"
        assert (store.stats().lost, store.stats().restarts) == (store.write_problem(), 0)
        assert caplog.text.count("was deleted while it was in use") == 1
        store.maintain()
        assert (store.write_problem(), store.stats().restarts) == ("", 1)
        assert store.stats().head_samples == unsealed + 2
        assert store.stats().blocks == 0
        kept = contents_of(store)
        assert kept[labels("new")].keys() == {clock.at}
        with pytest.raises(StoreLockedError):
            Store(folder, clock=clock)
        clock.at += 60_000
        assert store.append(tick(target, clock.at, ids, [9.0, 9.0])).accepted == 2
        store.seal()
        assert store.check().problems == []
        assert (folder.stat().st_mode & 0o777, (folder / FILE_NAME).stat().st_mode & 0o777) == (0o700, 0o600)
    with Store(folder, clock=clock) as store:
        found = contents_of(store)
        assert found[labels("new")].keys() == {clock.at - 60_000, clock.at}
        assert all(found[one].items() >= times.items() for one, times in kept.items())


def test_a_folder_that_cannot_be_recreated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, clock = tmp_path / "data", HandClock()
    with filled(folder, clock) as store:
        before = store.stats().head_samples
        shutil.rmtree(folder)
        folder.write_text("in the way")
        for _ in range(3):
            store.maintain()
            assert "was deleted" in store.write_problem()
            assert store.stats().head_samples == before, "nothing must be sealed into a deleted file"
        assert caplog.text.count("cannot be recreated") == 1
        folder.unlink()
        store.maintain()
        assert store.write_problem() == ""
        assert store.stats().head_samples == before


def test_a_replaced_folder_is_not_touched(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", HandClock()
    elsewhere = HandClock()
    with Store(tmp_path / "other", clock=elsewhere) as other:
        fill(other, elsewhere, 1)
    with filled(folder, clock) as store:
        folder.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "other", folder)
        contents = (folder / FILE_NAME).read_bytes()
        store.maintain()
        assert store.write_problem()
        assert "restart gpuscope" in (store.stats().last_error or "")
        assert (folder / FILE_NAME).read_bytes() == contents
        shutil.rmtree(folder)
        (tmp_path / "moved").rename(folder)
        store.maintain()
        assert store.write_problem() == ""
        assert store.stats().blocks, "the folder is back: nothing was lost"


def test_late_samples_are_kept_too(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", HandClock()
    with filled(folder, clock) as store:
        (target,) = [state.id for state in store.contents.states()]
        store.seal()
        (late,) = store.resolve(target, [labels("late")]).tolist()
        store.append(timed_tick(target, [(late, clock.at - 1_800_000, 5.0)]))
        shutil.rmtree(folder)
        store.maintain()
        assert list(contents_of(store)) == [labels("late")]
    with Store(folder, clock=clock) as store:
        assert list(contents_of(store)) == [labels("late")]


def test_the_background_thread_recreates_the_folder(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", HandClock()
    with Store(folder, StoreOptions(maintain_interval_s=3600), clock) as store:
        store.start()
        target = store.target("node")
        (a,) = store.resolve(target, [labels("a")]).tolist()
        store.append(tick(target, NOW, [a], [1.0]))
        shutil.rmtree(folder)
        restarted = threading.Event()
        watch = store.write_side().watch
        reopened = watch.reopened

        def noted() -> None:
            reopened()
            restarted.set()

        watch.reopened = noted  # type: ignore[method-assign]
        store.append(tick(target, NOW + 1, [a], [2.0]))
        assert restarted.wait(60)
        store.append(tick(target, NOW + 2, [a], [3.0]))
        assert store.select(named("a"), 0, 2**62)[0].values.tolist() == [1.0, 2.0, 3.0]
    with Store(folder, clock=clock) as store:
        assert store.select(named("a"), 0, 2**62)[0].values.tolist() == [1.0, 2.0, 3.0]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    folder, clock, elsewhere = tmp_path / "data", HandClock(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    with filled(folder, clock) as store:
        shutil.rmtree(folder)
        folder.symlink_to(elsewhere)
        store.maintain()
        assert list(elsewhere.iterdir()) == []
        assert "was deleted" in store.write_problem()
        assert "symbolic link" in str(store.stats().last_error)
        folder.unlink()
        store.maintain()
        assert store.write_problem() == ""
        assert (folder / FILE_NAME).exists()


def test_a_link_that_was_there_at_the_start_is_the_users_own(tmp_path: Path) -> None:
    real, folder, clock = tmp_path / "real", tmp_path / "data", HandClock()
    real.mkdir()
    folder.symlink_to(real)
    with filled(folder, clock) as store:
        (real / FILE_NAME).unlink()
        store.maintain()
        assert store.write_problem() == ""
        assert (real / FILE_NAME).exists()
