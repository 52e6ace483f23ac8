"""Which Slurm job a process belongs to, and what is allocated to whom on this node, by every way to know it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.allocation_matching import AllocationMatcher
from gpuscope.agent.owners.attribution import owner_of
from gpuscope.agent.owners.cgroup import parse_cgroup
from gpuscope.agent.owners.job_files import SlurmClaims, read_job_files
from gpuscope.agent.owners.node_jobs import JobStep, NodeJobs, SlurmPids, find_scontrol, parse_listpids
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.agent.owners.pods import NO_PODS
from gpuscope.agent.owners.process_lookup import KernelFacts, ProcessKey, SlurmVariables
from gpuscope.agent.owners.unallocated_use import NEW_SECONDS
from gpuscope.model.readings import (
    ABSENT,
    Device,
    Instance,
    JobFacts,
    Maybe,
    Owner,
    OwnerKey,
    Ownership,
    Pid,
    Process,
    SlurmState,
    Uuid,
)
from gpuscope.model.readings.slurm import RUNNING, Gres, JobPlacement, SlurmJob, SlurmNode
from gpuscope.vendors.nvidia.nvidia_values import make_device, make_instance
from tests.fakes import FakeClock

SLUID = "s8FXKTA79XAR00"
LISTED = """PID      JOBID    STEPID   LOCALID GLOBALID
4959     17       batch    0       0
4960     17       batch    -       -
4994     2        0        0       0
-1       3        extern   -       -
"""
NOW = 1_800_000_000.0


def test_listpids_is_parsed() -> None:
    expected = {4959: JobStep("17", "batch"), 4960: JobStep("17", "batch"), 4994: JobStep("2", "0")}
    assert parse_listpids(LISTED) == expected


@given(st.text(max_size=300))
def test_any_text_of_listpids_is_survived(text: str) -> None:
    assert all(pid >= 0 and step.job.isdigit() for pid, step in parse_listpids(text).items())


def fake_scontrol(folder: Path, text: str = LISTED, code: int = 0) -> str:
    """A scontrol that notes each run."""
    (folder / "listed").write_text(text)
    program = folder / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/runs\ncat {folder}/listed\nexit {code}\n')
    program.chmod(0o755)
    return str(program)


def runs(folder: Path) -> list[str]:
    path = folder / "runs"
    return path.read_text().splitlines() if path.exists() else []


def test_slurmstepd_is_asked_only_about_processes_that_need_it(tmp_path: Path) -> None:
    clock = FakeClock()
    reader = SlurmPids(fake_scontrol(tmp_path), clock)
    assert reader.read().value == {}
    assert runs(tmp_path) == []
    known, unknown = ProcessKey(4959, 1), ProcessKey(1, 1)
    reader.want([known, unknown])
    assert not reader.has_answered(known)
    first = reader.read().value
    assert first == {4959: JobStep("17", "batch")}
    assert reader.has_answered(unknown)
    clock.pass_seconds(3.0)
    assert reader.read().value is first
    assert runs(tmp_path) == ["listpids"]
    clock.pass_seconds(8.0)
    (tmp_path / "listed").write_text(LISTED + "1 99 0 0 0\n")
    assert reader.read().value == {**first, 1: JobStep("99", "0")}, "it was too young the first time"
    for _ in range(5):
        clock.pass_seconds(60.0)
        reader.read()
    assert runs(tmp_path) == ["listpids"] * 2
    reader.want([])
    assert reader.read().value == {}


def test_a_machine_without_steps_and_a_command_that_fails(tmp_path: Path) -> None:
    reader = SlurmPids(fake_scontrol(tmp_path, "No job steps exist on this node.\n", code=1), FakeClock())
    reader.want([ProcessKey(4959, 1)])
    assert reader.read().failures == {}
    (tmp_path / "scontrol").unlink()
    reader.want([ProcessKey(4960, 1)])
    result = reader.read()
    assert (result.value, dict(result.failures)) == ({}, {"listpids": 1})


def test_only_a_machine_of_a_cluster_has_scontrol(tmp_path: Path) -> None:
    fake_scontrol(tmp_path)
    conf = tmp_path / "slurm.conf"
    assert find_scontrol(str(tmp_path), {"SLURM_CONF": str(conf)}) == ""
    conf.touch()
    assert find_scontrol(str(tmp_path), {"SLURM_CONF": str(conf)}) == str(tmp_path / "scontrol")


@pytest.mark.parametrize(
    ("cgroup", "environment", "jobs", "expected"),
    [
        # cgroup v1, with and without the node's name, and v2: the path has the number
        ("1:cpu:/slurm/uid_5/job_7/step_0/task_0", "8", NodeJobs(), ("7", "0")),
        ("1:cpu:/slurm_gpu1/uid_5/job_7/step_batch/task_0", "", NodeJobs(), ("7", "batch")),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "", NodeJobs(), ("7", "0")),
        ("0::/system.slice/gpu1_slurmstepd.scope/job_7/step_0/user/task_0", "", NodeJobs(), ("7", "0")),
        # 26.05: the path has the SLUID, the prolog wrote its number
        (f"0::/slurmstepd.scope/{SLUID}/step_batch/user", "", NodeJobs({SLUID: "7"}), ("7", "batch")),
        (f"0::/slurmstepd.scope/{SLUID}/step_3/user", "9", NodeJobs({}, {1: JobStep("7", "3")}), ("7", "3")),
        (f"0::/slurmstepd.scope/{SLUID}/step_3/user", "9", NodeJobs(), ("9", "3")),
        # proctrack/linuxproc: no trace in the path
        ("0::/system.slice/slurmd.service", "", NodeJobs({}, {1: JobStep("7", "0")}), ("7", "0")),
        ("0::/system.slice/slurmd.service", "8", NodeJobs({}, {1: JobStep("7", "0")}), ("7", "0")),
        ("0::/system.slice/slurmd.service", "8", NodeJobs(), ("8", ABSENT)),
        # a container is not slurmstepd's, whatever PID it has
        ("0::/docker/" + "a" * 64, "", NodeJobs({}, {1: JobStep("7", "0")}), (ABSENT, ABSENT)),
    ],
)  # fmt: skip
def test_the_job_of_a_process(
    cgroup: str, environment: str, jobs: NodeJobs, expected: tuple[Maybe[str], Maybe[str]]
) -> None:
    facts = KernelFacts(cgroup=parse_cgroup(cgroup), slurm=SlurmVariables(job=environment or ABSENT))
    owner = owner_of(facts, jobs=jobs, pid=1)
    assert (owner.job, owner.job_step) == expected


def test_an_environment_does_not_make_a_process_part_of_another_users_job() -> None:
    """Anybody can set SLURM_JOB_ID; the prolog's notes say whose the job is."""
    jobs = NodeJobs(facts={"8": JobFacts(user="ann"), "9": JobFacts()})
    for user, job, expected in (
        ("ann", "8", "8"),
        ("eve", "8", ABSENT),
        (ABSENT, "8", ABSENT),
        ("eve", "9", "9"),
    ):
        owner = owner_of(KernelFacts(user=user, slurm=SlurmVariables(job=job)), jobs=jobs, pid=1)
        assert owner.job == expected


def test_the_files_of_three_prologs(tmp_path: Path) -> None:
    uuid, board = "GPU-5a5a7118-e550-79a1-597e-7631e126c57a", "MIG-GPU-5a5a7118-e550-79a1-597e-7631e126c57a"
    (tmp_path / "3").write_text("40 5\n")  # jobstats writes the number and the UUID
    (tmp_path / uuid).write_text("40 5\n")
    (tmp_path / "0").write_text("41\n42\n")  # gpuscope's, two jobs with shards of one GPU
    (tmp_path / f"{board}_7_0").write_text("43\n")
    (tmp_path / "job-41").write_text(
        f"user=alice\naccount=ml\npartition=gpu,all\narray=39_2\nend=1800003600\nsluid={SLUID}\nuid=5\n"
    )
    (tmp_path / "job-43").write_text("start=1800000000\nend=1831536000\n")
    (tmp_path / "job-42").write_text("user=bob\nend=0\naccount=a\x1b[31mb\narray=x\nsluid=none\nnonsense\n")
    (tmp_path / "job-x").write_text("user=eve\n")
    files = read_job_files(str(tmp_path))
    assert {(claim.device_id, claim.job) for claim in files.claims} == {
        (uuid, "40"), ("0", "41"), ("0", "42"), (f"{board}/7/0", "43"),
    }  # fmt: skip
    assert files.sluids == {SLUID: "41"}
    alice, bob = files.jobs["41"], files.jobs["42"]
    assert (alice.user, alice.account, alice.partition) == ("alice", "ml", "gpu,all")
    assert (alice.array, alice.ends_at) == ("39_2", 1_800_003_600.0)
    assert (bob.user, bob.account, bob.array, bob.ends_at) == ("bob", ABSENT, ABSENT, ABSENT)
    assert files.jobs["43"].ends_at is ABSENT, "no time limit"
    assert files.jobs.keys() == {"41", "42", "43"}
    assert "job-41" not in files.lines, "dcgm-exporter's labels come from the GPUs' files only"


def gpu(number: int, *instances: Instance) -> Device:
    """nvidia-smi counts the other way round than the device files."""
    return make_device(uuid=Uuid(f"GPU-{number}"), index=9 - number, minor_number=number, instances=instances)


def instance(board: int, gi: int, profile: str) -> Instance:
    return make_instance(uuid=Uuid(f"MIG-{board}-{gi}"), gpu_instance=gi, compute_instance=0, profile=profile)


def job(job_id: int, user: str = "alice", **changes: object) -> SlurmJob:
    plain = SlurmJob(
        job_id=job_id, user=user, account="ml", partitions=("gpu",), state=RUNNING, reason="None", name="x",
        cpus=1, node_count=1, gres=(), node_list="gpu7", ends_at=NOW + 3600,
    )  # fmt: skip
    return plain._replace(**changes)  # type: ignore[arg-type]


def state(count: int, *held: tuple[SlurmJob, tuple[Gres, ...]], node: str = "gpu7") -> SlurmState:
    return SlurmState(
        up=True,
        jobs=tuple(one for one, _ in held),
        placements={
            one.job_id: (JobPlacement(node, gres), JobPlacement("gpu8", (Gres("gpu", "", 1, (0,)),)))
            for one, gres in held
        },
        nodes=(SlurmNode(name=node, long_state="mixed", gres=(Gres("gpu", "", count), Gres("shard", "", 8))),),
    )


def claimed(
    devices: Sequence[Device], slurm: SlurmState, name: str = "gpu7.example.org"
) -> set[tuple[str, str]]:
    local = SlurmClaims(name).read(slurm, devices)
    assert local is not ABSENT
    return {(claim.device_id, str(claim.job)) for claim in local.claims}


def test_slurms_indices_are_minor_numbers() -> None:
    slurm = state(2, (job(1), (Gres("gpu", "a100", 1, (1,)),)), (job(2), (Gres("gpu", "a100", 1, (0,)),)))
    assert claimed([gpu(0), gpu(1)], slurm) == {("GPU-1", "1"), ("GPU-0", "2")}


def test_shards_and_mps_are_of_a_gpu_that_several_jobs_have() -> None:
    slurm = state(2, (job(1), (Gres("shard", "", 2, (1,)),)), (job(2), (Gres("mps", "", 50, (1,)),)))
    assert claimed([gpu(0), gpu(1)], slurm) == {("GPU-1", "1"), ("GPU-1", "2")}


def test_mig_instances_count_as_gpus_in_their_order() -> None:
    devices = [gpu(0), gpu(1, instance(1, 9, "1g.10gb"), instance(1, 2, "3g.40gb"))]
    mig = (Gres("gpu", "h100", 0, ()), Gres("gpu", "h100_3g.40gb", 1, (1,)))
    assert claimed(devices, state(3, (job(1), mig))) == {("MIG-1-2", "1")}
    assert claimed(devices, state(3, (job(1), (Gres("gpu", "h100", 1, (0,)),)))) == {("GPU-0", "1")}
    # Slurm has more GPUs than the node, or the profile is another one: nothing is guessed.
    assert claimed(devices, state(4, (job(1), mig))) == {("gpu7:h100_3g.40gb:1", "1")}
    wrong = (Gres("gpu", "h100_1g.10gb", 1, (1,)),)
    assert claimed(devices, state(3, (job(1), wrong))) == {("gpu7:h100_1g.10gb:1", "1")}


def test_a_node_that_is_not_slurms_and_an_unknown_queue_are_absent() -> None:
    slurm = state(1, (job(1), (Gres("gpu", "", 1, (0,)),)))
    assert SlurmClaims("login1").read(slurm, [gpu(0)]) is ABSENT
    assert SlurmClaims("gpu7").read(ABSENT, [gpu(0)]) is ABSENT
    assert SlurmClaims("gpu7").read(SlurmState(up=True, nodes=slurm.nodes), [gpu(0)]) is ABSENT


def process(
    pid: int, number: int, *, user: str = "alice", job_id: Maybe[str] = ABSENT, age: float = 3600.0,
    kind: str = "C", command: str = "python3",
) -> Process:  # fmt: skip
    return Process(
        pid=Pid(pid), gpu_uuid=Uuid(f"GPU-{number}"), started_at=NOW - age, kind=kind, command=command,
        owner=Owner(user=user, job=job_id), sm_ratio=0.5,
    )  # fmt: skip


def join(slurm: SlurmState, processes: Sequence[Process], gpus: int = 3) -> Ownership:
    joined = OwnerJoin(scheduler=AllocationMatcher([], lambda: NO_PODS), node="gpu7")
    devices = [gpu(number) for number in range(gpus)]
    joined.advance(tuple(processes), devices, {}, simulated=True, now=NOW, monotonic=0.0, slurm=slurm)
    _, ownership = joined.advance(
        tuple(processes), devices, {}, simulated=True, now=NOW, monotonic=10.0, slurm=slurm
    )
    return ownership


HELD = (
    (job(1, array_job_id=90, array_task="4"), (Gres("gpu", "", 2, (0, 1)),)),
    (job(2, "bob", account="physics"), (Gres("gpu", "", 1, (2,)),)),
)


def test_allocated_and_unused_and_used_and_not_allocated_are_facts() -> None:
    processes = [
        process(10, 0, job_id="1"),
        process(11, 2, user="bob", job_id="2"),
        process(12, 2, job_id="1"),  # on bob's GPU
        process(13, 2, user="eve"),  # came by ssh
        process(14, 2, user="eve", age=NEW_SECONDS - 1),  # Slurm may not know it yet
        process(15, 2, user="root", kind="G"),
        process(16, 2, user="root", command="nvidia-cuda-mps-server"),
    ]
    ownership = join(state(3, *HELD), processes)
    assert ownership.allocations is not ABSENT
    used = {(one.gpu_uuid, one.job): one.used for one in ownership.allocations}
    assert used == {("GPU-0", "1"): True, ("GPU-1", "1"): False, ("GPU-2", "2"): True}
    assert ownership.unallocated == {"GPU-0": 0, "GPU-1": 0, "GPU-2": 2}
    by_job = {
        (use.owner.name, use.gpu_uuid): use.allocated for use in ownership.uses if use.owner.kind == "job"
    }
    assert by_job == {("1", "GPU-0"): True, ("1", "GPU-1"): True, ("2", "GPU-2"): True, ("1", "GPU-2"): False}


def test_a_gpu_without_a_process_is_held_by_the_user_of_its_job() -> None:
    """By user, account and job the same GPUs are held, used or not."""
    ownership = join(state(3, *HELD), [process(10, 0, job_id="1")])
    for kind, names in (("user", ("alice", "bob")), ("job", ("1", "2")), ("account", ("ml", "physics"))):
        held = {(use.owner.name, use.gpu_uuid) for use in ownership.uses if use.owner.kind == kind and use.here}
        first, second = names
        assert held == {(first, "GPU-0"), (first, "GPU-1"), (second, "GPU-2")}, kind


def test_a_blind_agent_accuses_nobody() -> None:
    """Without cgroups and root it sees users, but not their jobs."""
    ownership = join(state(3, *HELD), [process(10, 0), process(11, 2, user="bob"), process(12, 1, user="bob")])
    assert ownership.allocations is not ABSENT
    assert {str(one.gpu_uuid): one.used for one in ownership.allocations} == {
        "GPU-0": True, "GPU-1": False, "GPU-2": True,
    }  # fmt: skip
    assert ownership.unallocated == {"GPU-0": 0, "GPU-1": 1, "GPU-2": 0}


def test_a_job_whose_gpu_is_not_known_is_accused_of_nothing() -> None:
    held = (job(1), (Gres("gpu", "h100_3g.40gb", 1, (0,)),))
    ownership = join(state(3, held), [process(10, 1, job_id="1")])
    assert ownership.unallocated == {"GPU-0": 0, "GPU-1": 0, "GPU-2": 0}


def test_jobs_and_accounts_are_owners() -> None:
    ownership = join(state(3, *HELD), [process(10, 0, job_id="1"), process(11, 2, user="bob", job_id="2")])
    held = {(use.owner, str(use.gpu_uuid)): use.gpu_seconds for use in ownership.uses}
    for kind, name, uuid in (
        ("job", "1", "GPU-0"),
        ("account", "ml", "GPU-1"),
        ("account", "physics", "GPU-2"),
    ):
        assert held[OwnerKey(kind, name), uuid] == 10.0, (kind, name)
    about = ownership.jobs["1"]
    assert (about.user, about.account, about.partition, about.array) == ("alice", "ml", "gpu", "90_4")
    assert about.ends_at == NOW + 3600


def test_without_slurm_there_is_nothing_to_compare_with() -> None:
    joined = OwnerJoin(scheduler=AllocationMatcher([], lambda: NO_PODS), node="gpu7")
    processes = (process(10, 0, job_id="1"),)
    _, ownership = joined.advance(processes, [gpu(0)], {}, simulated=True, now=NOW, monotonic=0.0)
    assert ownership.allocations is ABSENT
    assert ownership.unallocated == {}
    assert ownership.jobs.keys() == {"1"}
    assert {use.allocated for use in ownership.uses} == {ABSENT}
