"""What counts as work: every engine, copies, and what the GPU does and no process reports."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpuscope.agent.owners.gpu_work import (
    IDLE_BYTES_PER_SECOND,
    SERVICE_MATCHERS,
    WORKING_RATIO,
    is_service,
    working,
)
from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.judge.checks import thresholds
from gpuscope.model.readings import (
    ABSENT,
    ACTIVE,
    IDLE,
    UNKNOWN,
    Counters,
    Device,
    Maybe,
    Owner,
    OwnerUse,
    Pid,
    Process,
    Uuid,
)
from gpuscope.vendors.nvidia.nvidia_values import make_device, make_instance
from tests.fakes import Keywords

GPU = Uuid("GPU-0")
IDLE_GPU = make_device(
    uuid=GPU,
    index=0,
    utilization_ratio=0.0,
    encoder_utilization_ratio=0.0,
    decoder_utilization_ratio=0.0,
    pcie_bytes_per_second={"tx": 0.0, "rx": IDLE_BYTES_PER_SECOND / 2},
)
COPYING = {"pcie_bytes_per_second": {"tx": 5e9, "rx": 0.0}}


def process(pid: int = 1, sm: Maybe[float] = 0.0, **more: object) -> Process:
    values = {"command": "python3", "owner": Owner(user="ann"), **more}
    return Process(pid=Pid(pid), gpu_uuid=GPU, sm_ratio=sm, **values)  # type: ignore[arg-type]


def gpu(**more: object) -> Device:
    return replace(IDLE_GPU, **more)  # type: ignore[arg-type]


def test_there_is_one_threshold() -> None:
    assert thresholds.WORKING_RATIO == WORKING_RATIO == 0.01


@pytest.mark.parametrize("engine", ["sm_ratio", "encoder_ratio", "decoder_ratio", "jpeg_ratio", "ofa_ratio"])
def test_a_process_works_on_any_engine(engine: str) -> None:
    assert working([replace(process(), **Keywords({engine: 0.9}))], [IDLE_GPU]) == [True]
    assert working([replace(process(), **Keywords({engine: 0.009}))], [IDLE_GPU]) == [False]


@pytest.mark.parametrize(
    "change",
    [
        {"utilization_ratio": 0.3},
        {"encoder_utilization_ratio": 0.3},
        {"decoder_utilization_ratio": 0.3},
        {"jpeg_utilization_ratio": 0.3},
        {"ofa_utilization_ratio": 0.3},
        COPYING,
    ],
)
def test_what_no_process_reports_is_the_work_of_the_only_holder_and_of_several_nobody_knows(
    change: dict[str, object],
) -> None:
    device = gpu(**change)
    assert working([process()], [device]) == [True]
    assert working([process(1), process(2)], [device]) == [ABSENT, ABSENT]
    server = process(2, command="Xorg", kind="G")
    assert working([process(1), server], [device]) == [True, False], "a display server is no holder"


def test_what_a_process_reports_is_not_the_work_of_another() -> None:
    device = gpu(utilization_ratio=0.3, encoder_utilization_ratio=0.5, **COPYING)
    encoding = process(1, sm=0.3, encoder_ratio=0.5)
    assert working([encoding, process(2)], [device]) == [True, False]


def test_the_mps_server_reports_the_work_of_its_clients() -> None:
    device = gpu(utilization_ratio=0.8)
    server = process(1, sm=0.8, command="nvidia-cuda-mps-server")
    client, other = process(2, kind="M+C"), process(3, kind="M+C")
    assert working([server, client], [device])[1] is True
    assert working([server, client, other], [device])[1:] == [ABSENT, ABSENT]


def test_under_mig_the_engines_of_the_board_say_nothing() -> None:
    instance = make_instance(uuid=Uuid("MIG-1"), gpu_instance=1, compute_instance=0)
    device = gpu(utilization_ratio=0.9, instances=(instance,))
    assert working([process(sm=ABSENT, instance_uuid=instance.uuid)], [device]) == [ABSENT]


@pytest.mark.parametrize(
    ("device", "running", "state"),
    [
        (IDLE_GPU, process(encoder_ratio=0.9), ACTIVE),
        (gpu(encoder_utilization_ratio=0.9), process(), ACTIVE),
        (gpu(**COPYING), process(), ACTIVE),
        (IDLE_GPU, process(), IDLE),
        (IDLE_GPU, process(sm=ABSENT), UNKNOWN),
    ],
)
def test_the_state_of_a_process(device: Device, running: Process, state: str) -> None:
    enricher = ProcessEnricher(60.0)
    for at in (0.0, 60.0):
        (seen,) = enricher.advance([running], [device], simulated=True, now=at, monotonic=at)
    assert seen.state == state


class Held:
    """An hour of one GPU."""

    def __init__(self, device: Device, *running: Process) -> None:
        accounts = OwnerAccounts()
        for second in range(0, 3601, 20):
            uses, _ = accounts.advance(running, [device], ABSENT, {GPU: Counters()}, float(second))
        self.uses = {use.owner.name: use for use in uses}
        (time,) = accounts.times
        self.unit = time.units[0]

    def __getitem__(self, user: str) -> OwnerUse:
        return self.uses[user]


def test_an_encoder_at_90_percent_is_not_idle_held_and_its_busy_time_is_still_sm_time() -> None:
    held = Held(gpu(encoder_utilization_ratio=0.9), process(encoder_ratio=0.9))
    assert (held["ann"].idle_gpu_seconds, held["ann"].idle_seconds, held["ann"].busy_seconds) == (0, 0, 0)
    assert held.unit.idle_seconds == 0


def test_a_server_at_3_percent_is_not_idle() -> None:
    assert Held(gpu(utilization_ratio=0.03), process(sm=0.03))["ann"].idle_gpu_seconds == 0


def test_idle_holders_of_a_gpu_that_copies_for_one_of_them_are_not_known_to_be_idle() -> None:
    bob = process(2, owner=Owner(user="bob"))
    held = Held(gpu(**COPYING), process(), bob)
    assert [held[user].idle_seconds for user in ("ann", "bob")] == [ABSENT, ABSENT]
    assert (held["ann"].busy_seconds, held["ann"].unknown_seconds) == (0, 0)


@pytest.mark.parametrize(
    "service",
    [
        {"command": "Xorg", "kind": "G"},
        {"command": "gnome-shell", "kind": "C+G"},
        {"command": "nvidia-cuda-mps-server"},
        {"command": "nvidia-cuda-mps"},
        {"command": "/usr/bin/nvidia-cuda-mps-server -force"},
        {"command": "nvidia-persiste"},
        {"command": "nv-hostengine"},
        {"command": "gpuscope"},
    ],
)
def test_a_service_never_holds_a_gpu_idle(service: Keywords) -> None:
    root = process(owner=Owner(user="root"), **service)
    held = Held(IDLE_GPU, root)
    assert (held["root"].held_seconds, held["root"].idle_seconds) == (3600, ABSENT)
    assert (held["root"].idle_gpu_seconds, held.unit.idle_seconds) == (0, 0)
    beside = Held(IDLE_GPU, root, process(2))
    assert beside["root"].idle_gpu_seconds == 0
    assert beside["ann"].idle_seconds == 3600


def test_idle_mps_clients_are_ordinary_holders() -> None:
    server = process(owner=Owner(user="root"), command="nvidia-cuda-mps-server")
    held = Held(IDLE_GPU, server, process(2, kind="M+C"))
    assert (held["root"].idle_seconds, held["ann"].idle_seconds) == (ABSENT, 3600)


@pytest.mark.parametrize(
    ("kind", "command", "service"),
    [
        ("G", "firefox", True),
        ("C", "Xorg", True),
        ("C", "/usr/lib/xorg/Xorg :0 -auth /run/gdm", True),
        ("C", "python3 /opt/Xorg", False),
        ("C+G", "blender", False),
        ("M+C", "python3", False),
        ("C", "Xorgfake", False),
    ],
)
def test_the_matchers_of_series_are_those_of_processes(kind: str, command: str, service: bool) -> None:
    matchers = re.fullmatch(r'type!="(.*)",command!~"(.*)"', SERVICE_MATCHERS)
    assert matchers is not None
    by_series = kind == matchers[1] or re.fullmatch(matchers[2], command) is not None
    assert by_series == is_service(process(kind=kind, command=command)) == service
