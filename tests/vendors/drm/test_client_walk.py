"""Clients of cards, found by the open files of processes: each once, and never going back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpuscope.model.readings import ABSENT
from gpuscope.vendors.drm.client_walk import WALKS_TO_SEE_ALL, DrmClients, sum_ratio
from tests.fakes import FakeClock
from tests.vendors.amd.trees import AmdMachine

PDEV = "0000:03:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> AmdMachine:
    return AmdMachine(tmp_path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def clients_of(machine: AmdMachine, clock: FakeClock) -> DrmClients:
    return DrmClients(str(machine.proc), {"amdgpu"}, clock.monotonic)


def test_a_process_with_a_card_open(machine: AmdMachine, clock: FakeClock) -> None:
    machine.add_process(10)
    machine.add_drm_client(20, 5, pdev=PDEV, client=4, drm_resident_vram="8 MiB", drm_engine_gfx="100 ns")
    (use,) = clients_of(machine, clock).walk()
    assert (use.pid, use.device, use.client.memory_bytes) == (20, "renderD128", {"vram": 8 << 20})
    assert use.engine_ratio is ABSENT


def test_a_client_counts_once_for_all_its_files_and_forks(machine: AmdMachine, clock: FakeClock) -> None:
    for fd in (3, 4, 5):
        machine.add_drm_client(100, fd, pdev=PDEV, client=4, drm_resident_vram="8 MiB")
    for pid in range(101, 601):
        machine.add_drm_client(pid, 3, pdev=PDEV, client=4, drm_resident_vram="8 MiB")
    machine.add_drm_client(700, 3, pdev=PDEV, client=5, drm_resident_vram="1 MiB")
    machine.add_drm_client(700, 4, pdev="0000:04:00.0", client=4, drm_resident_vram="2 MiB")
    clients = clients_of(machine, clock)
    assert [(use.pid, use.client.key) for use in clients.walk()] == [
        (100, (PDEV, 4)), (700, (PDEV, 5)), (700, ("0000:04:00.0", 4)),
    ]  # fmt: skip


def test_a_fork_does_not_take_the_client_over_while_its_process_lives(
    machine: AmdMachine, clock: FakeClock
) -> None:
    machine.add_drm_client(500, 3, pdev=PDEV, client=4)
    clients = clients_of(machine, clock)
    clients.walk()
    machine.add_drm_client(400, 3, pdev=PDEV, client=4)
    assert [use.pid for use in clients.walk()] == [500]
    shutil.rmtree(machine.proc / "500")
    assert [use.pid for use in clients.walk()] == [400]


def test_the_share_of_an_engine(machine: AmdMachine, clock: FakeClock) -> None:
    machine.add_drm_client(20, 5, pdev=PDEV, client=4, drm_engine_gfx="1000000000 ns")
    clients = clients_of(machine, clock)
    clients.walk()
    clock.pass_seconds(2.0)
    machine.add_drm_client(
        20, 5, pdev=PDEV, client=4, drm_engine_gfx="1500000000 ns", drm_engine_dec="200000000 ns"
    )
    (use,) = clients.read_known()
    assert use.engine_ratio == {"gfx": 0.25, "dec": 0.1}
    assert sum_ratio([use], ("gfx", "compute")) == 0.25
    assert sum_ratio([use], ("jpeg",)) == 0.0


def test_engine_time_that_goes_back_counts_nothing_twice(machine: AmdMachine, clock: FakeClock) -> None:
    clients = clients_of(machine, clock)
    ratios = []
    for nanoseconds in (1_000_000_000, 400_000_000, 1_000_000_000, 1_100_000_000):
        machine.add_drm_client(20, 5, pdev=PDEV, client=4, drm_engine_gfx=f"{nanoseconds} ns")
        (use,) = clients.walk()
        ratios.append(use.engine_ratio if use.engine_ratio is ABSENT else use.engine_ratio["gfx"])
        clock.pass_seconds(1.0)
    assert ratios == [ABSENT, 0.0, 0.0, pytest.approx(0.1)]


def test_several_engines_of_a_kind(machine: AmdMachine, clock: FakeClock) -> None:
    clients = clients_of(machine, clock)
    for busy in (0, 1_000_000_000):
        machine.add_drm_client(
            20, 5, pdev=PDEV, client=4, drm_engine_dec=f"{busy} ns", drm_engine_capacity_dec="2"
        )
        (use,) = clients.walk()
        clock.pass_seconds(1.0)
    assert use.engine_ratio == {"dec": 0.5}


def test_a_card_that_is_opened_later_is_found_and_a_closed_one_is_gone(
    machine: AmdMachine, clock: FakeClock
) -> None:
    machine.add_process(20)
    clients = clients_of(machine, clock)
    assert clients.walk() == []
    machine.add_drm_client(20, 7, pdev=PDEV, client=4)
    assert [use.pid for use in clients.walk()] == [20]
    (machine.proc / "20/fd/7").unlink()
    (machine.proc / "20/fdinfo/7").unlink()
    assert clients.read_known() == []
    assert clients.walk() == []


def test_a_number_that_is_used_again_for_a_card_is_seen_in_time(machine: AmdMachine, clock: FakeClock) -> None:
    machine.add_process(20)
    (machine.proc / "20/fd/7").symlink_to("/tmp/log")
    clients = clients_of(machine, clock)
    assert clients.walk() == []
    machine.add_drm_client(20, 7, pdev=PDEV, client=4)
    seen = [len(clients.walk()) for _ in range(WALKS_TO_SEE_ALL)]
    assert 1 in seen
    assert seen[-1] == 1


def test_other_drivers_and_broken_files_are_left_out(machine: AmdMachine, clock: FakeClock) -> None:
    machine.add_drm_client(20, 5, pdev=PDEV, client=4)
    info = machine.proc / "20/fdinfo/5"
    info.write_text(info.read_text().replace("amdgpu", "i915"))
    machine.add_drm_client(30, 5, pdev=PDEV, client=5)
    (machine.proc / "30/fdinfo/5").unlink()
    machine.add_drm_client(40, 5, pdev=PDEV, client=6)
    (machine.proc / "40/fdinfo/5").write_bytes(b"\xff\xfe\x00")
    assert clients_of(machine, clock).walk() == []


def test_a_machine_without_processes(tmp_path: Path, clock: FakeClock) -> None:
    clients = DrmClients(str(tmp_path / "none"), {"amdgpu"}, clock.monotonic)
    assert clients.walk() == []
    assert clients.unreadable == 0


def test_cycles_against_the_clock_of_the_card(machine: AmdMachine, clock: FakeClock) -> None:
    clients = clients_of(machine, clock)
    ratios = []
    for own, total in ((1_000, 10_000), (3_000, 20_000), (2_500, 30_000), (3_500, 40_000), (9_000, 500),
                       (9_100, 1_500), (9_100, 1_500)):  # fmt: skip
        machine.add_drm_client(
            20, 5, pdev=PDEV, client=4, drm_cycles_ccs=str(own), drm_total_cycles_ccs=str(total),
            drm_engine_capacity_ccs="2",
        )  # fmt: skip
        (use,) = clients.walk()
        ratios.append(use.engine_ratio if use.engine_ratio is ABSENT else use.engine_ratio["ccs"])
        clock.pass_seconds(1.0)
    # What went back counts once; after the clock has begun again, nothing is known; it may stand still.
    assert ratios == [ABSENT, pytest.approx(0.1), 0.0, pytest.approx(0.025), ABSENT, pytest.approx(0.05), 0.0]


def test_clients_of_a_sleeping_card_are_not_read(machine: AmdMachine, clock: FakeClock) -> None:
    machine.add_drm_client(20, 5, pdev=PDEV, client=4, drm_resident_vram="8 MiB", drm_engine_gfx="100 ns")
    clients = clients_of(machine, clock)
    clients.walk()
    clients.asleep = {"renderD128"}
    (machine.proc / "20/fdinfo/5").unlink()
    clock.pass_seconds(1.0)
    for uses in (clients.read_known(), clients.walk()):
        assert [(use.pid, use.client.memory_bytes, use.engine_ratio) for use in uses] == [
            (20, {"vram": 8 << 20}, {})
        ]
    clients.asleep = ()
    assert clients.walk() == []
