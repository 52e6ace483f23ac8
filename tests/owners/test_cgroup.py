"""Any cgroup path of any runtime: the recorded ones of the facts, and whatever can be put around them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.cgroup import NO_CGROUP, parse_cgroup
from gpuscope.model.readings import ABSENT
from tests.recordings import recording

UID = "0043435f-1854-4327-b76b-730f681a781d"
SYSTEMD_UID = UID.replace("-", "_")
STATIC = "d76e26fba3bf2bfd215eb29011d55250"
ID = "b2a102854b4969b2ce98dc329c86b4fb2b06e4ad2cc8da9d8a7578c9cd2004a2"
TASK = "4d622ae3ff5f46b5a3f7d4e6f9f0c1d2"
OTHER = "01fd96f7ad292b02a8317cde4ecb8c7ef3cc06ffdd113f13410e0837eb2b2a20"


def recorded() -> list[tuple[str, str, str, str, str]]:
    pattern = r"^   `([^`]+)`\n   → pod UID `([^`]+)`, container `([^`]+)`, runtime `([^`]+)`, qos `([^`]+)`"
    return re.findall(pattern, recording("facts/kubernetes.md").read_text("utf-8"), re.MULTILINE)


def test_recorded_lines_of_real_machines() -> None:
    lines = recorded()
    assert lines
    for line, uid, container, runtime, qos in lines:
        place = parse_cgroup(line + "\n")
        said = "?" if place.runtime is ABSENT else place.runtime
        assert (place.pod_uid, place.container_id, said, place.qos) == (uid, container, runtime, qos), line


SHAPES = {
    "v2 systemd containerd": (
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{ID}.scope",
        UID, ID, "containerd", "guaranteed",
    ),
    "v1 cgroupfs": (f"4:memory:/kubepods/burstable/pod{UID}/{ID}", UID, ID, ABSENT, "burstable"),
    "static pod": (f"4:memory:/kubepods/besteffort/pod{STATIC}/{ID}", STATIC, ID, ABSENT, "besteffort"),
    "colons in the path": (
        f"1:name=systemd:/system.slice/containerd.service/kubepods-besteffort-pod{SYSTEMD_UID}.slice"
        f":cri-containerd:{ID}",
        UID, ID, "containerd", "besteffort",
    ),
    "kind on podman": (
        f"0::/machine.slice/libpod-{OTHER}.scope/container/kubelet.slice/kubelet-kubepods.slice/"
        f"kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SYSTEMD_UID}.slice/"
        f"cri-containerd-{ID}.scope",
        UID, ID, "containerd", "burstable",
    ),
    "kind on docker": (
        f"0::/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{ID}", UID, ID, ABSENT, "burstable",
    ),
    "another pod, from a private namespace": (
        f"0::/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD_UID}.slice/crio-{ID}.scope",
        UID, ID, "cri-o", "besteffort",
    ),
    "truncated and relative: QoS unknown": (
        f"0::/../pod{UID}/{ID}", UID, ID, ABSENT, ABSENT,
    ),
    "the agent's own pod, from a private namespace": (
        f"0::/../cri-containerd-{ID}.scope", ABSENT, ID, "containerd", ABSENT,
    ),
    "crun's child group": (
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-{ID}.scope/container",
        UID, ID, "cri-o", "guaranteed",
    ),
    "docker in a pod": (
        f"0::/kubepods/pod{UID}/{ID}/docker/{OTHER}", UID, ID, ABSENT, "guaranteed",
    ),
    "a pod in a pod": (
        f"0::/kubepods/pod{STATIC}/{OTHER}/kubepods/burstable/pod{UID}/{ID}", UID, ID, ABSENT, "burstable",
    ),
    "CRI-O's sandbox": (
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-{ID}", UID, ABSENT, ABSENT, "guaranteed",
    ),
    "CRI-O's supervisor": (
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-conmon-{ID}.scope",
        UID, ABSENT, ABSENT, "guaranteed",
    ),
    "a container named by UUID": (
        f"0::/kubepods/pod{STATIC}/{UID}", STATIC, UID, ABSENT, "guaranteed",
    ),
    "docker": (f"0::/system.slice/docker-{ID}.scope", ABSENT, ID, "docker", ABSENT),
    "docker, v1": (f"3:cpu:/docker/{ID}", ABSENT, ID, "docker", ABSENT),
    "docker in docker": (f"0::/docker/{OTHER}/docker/{ID}", ABSENT, ID, "docker", ABSENT),
    "podman": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        ABSENT, ID, "podman", ABSENT,
    ),
    "podman's supervisor": (f"0::/machine.slice/libpod-conmon-{ID}.scope", ABSENT, ABSENT, ABSENT, ABSENT),
    "a desktop terminal": (
        f"0::/user.slice/app.slice/vte-spawn-{UID}.scope", ABSENT, ABSENT, ABSENT, ABSENT,
    ),
    "a login": ("0::/user.slice/user-0.slice/session-1.scope", ABSENT, ABSENT, ABSENT, ABSENT),
    "a podlike word": (f"0::/system.slice/tripod{UID}.service", ABSENT, ABSENT, ABSENT, ABSENT),
    "Fargate": (f"9:perf_event:/ecs/{TASK}/{TASK}-2531612879", ABSENT, f"{TASK}-2531612879", ABSENT, ABSENT),
    "Fargate, an older task": (f"1:cpu:/ecs/{UID}/{UID}-7/sub", ABSENT, f"{UID}-7", ABSENT, ABSENT),
    "not Fargate: another task's": (f"1:cpu:/ecs/{TASK}/{TASK[::-1]}-7", ABSENT, ABSENT, ABSENT, ABSENT),
    "not Fargate: no number": (f"1:cpu:/ecs/{TASK}/{TASK}-x", ABSENT, ABSENT, ABSENT, ABSENT),
    "ECS on EC2": (f"1:cpu:/ecs/{TASK}/{ID}", ABSENT, ID, ABSENT, ABSENT),
    "containerd's own folder": (f"0::/containerd/{ID}/init", ABSENT, ID, "containerd", ABSENT),
    "Podman's payload": (
        f"0::/machine.slice/libpod-payload-{ID}", ABSENT, ID, "podman", ABSENT,
    ),
    "Podman's payload inside its scope": (
        f"0::/machine.slice/libpod-{OTHER}.scope/libpod-payload-{ID}", ABSENT, ID, "podman", ABSENT,
    ),
    "a conmon below a folder of Docker's": (f"0::/docker/crio-conmon-{ID}", ABSENT, ABSENT, ABSENT, ABSENT),
    "a doubled slash": (f"0::/docker//{ID}", ABSENT, ID, "docker", ABSENT),
    "the root": ("0::/", ABSENT, ABSENT, ABSENT, ABSENT),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape(shape: str) -> None:
    line, uid, container, runtime, qos = SHAPES[shape]
    place = parse_cgroup(line + "\n")
    assert (place.pod_uid, place.container_id, place.runtime, place.qos) == (uid, container, runtime, qos)
    assert place.relative == ("/../" in line)


JOBS = {
    "v1": ("5:devices:/slurm/uid_1001/job_24/step_batch/task_0", "24", "batch"),
    "v1 with the node's name": ("4:memory:/slurm_gpu3/uid_1001/job_24/step_0/task_1", "24", "0"),
    "v1, no step yet": ("4:memory:/slurm_gpu3/uid_1001/job_24", "24", ABSENT),
    "v2": ("0::/system.slice/slurmstepd.scope/job_871/step_0/user/task_0", "871", "0"),
    "v2 with the node's name": ("0::/system.slice/gpu1_slurmstepd.scope/job_8/step_extern/user", "8", "extern"),
    "from a private namespace": ("0::/../../job_871/step_3/user/task_special", "871", "3"),
    "under a pod": (
        f"0::/kubepods/pod{UID}/{ID}/system.slice/slurmstepd.scope/job_5/step_0/user/task_0", "5", "0",
    ),
    "somebody else's job_7": ("0::/system.slice/cron.service/job_7", ABSENT, ABSENT),
    "not a number": ("0::/slurm/uid_0/job_x/step_0", ABSENT, ABSENT),
}  # fmt: skip


@pytest.mark.parametrize("shape", JOBS)
def test_a_slurm_path(shape: str) -> None:
    line, job, step = JOBS[shape]
    place = parse_cgroup(line + "\n")
    assert (place.job, place.job_step) == (job, step)


def test_a_sluid_says_the_step_but_not_the_job() -> None:
    place = parse_cgroup("0::/system.slice/slurmstepd.scope/s8FXKTA79XAR00/step_batch/user/task_0\n")
    assert (place.sluid, place.job_step, place.job) == ("s8FXKTA79XAR00", "batch", ABSENT)


def test_a_line_without_a_job_takes_no_sluid_away_and_one_with_a_job_says_more() -> None:
    sluid = "sABCDEFGHIJKLM"
    first = f"5:devices:/slurm/{sluid}/step_0"
    assert parse_cgroup(f"{first}\n4:memory:/user.slice\n").sluid == sluid
    both = parse_cgroup(f"{first}\n4:memory:/slurm/uid_1/job_24/step_0\n")
    assert (both.job, both.sluid) == ("24", ABSENT)


def test_a_slurm_job_inside_a_pod_keeps_both() -> None:
    place = parse_cgroup(f"0::/kubepods/pod{UID}/{ID}/slurmstepd.scope/job_5/step_0\n")
    assert (place.pod_uid, place.container_id, place.job) == (UID, ID, "5")


def test_recorded_slurm_processes() -> None:
    lines = recording("slurm-lab/captures/cgroup_v1/proc_summary.txt").read_text("utf-8").splitlines()
    assert lines
    for line in lines:
        job = re.search(r" job=(\d+) ", line)
        paths = re.findall(r"\d+:\S+", line)
        assert job
        assert parse_cgroup("\n".join(paths)).job == job[1]


STEP_OF_CGROUP_V1 = """\
12:pids:/system.slice/slurmd.service
11:freezer:/slurm/uid_1007/job_90210/step_3
10:devices:/slurm/uid_1007/job_90210/step_3/task_1
9:blkio:/
8:cpuset:/slurm/uid_1007/job_90210/step_3
7:memory:/slurm/uid_1007/job_90210/step_3/task_1
6:cpu,cpuacct:/slurm/uid_1007/job_90210/step_3/task_1
1:name=systemd:/system.slice/slurmd.service
0::/system.slice/slurmd.service
"""


def test_a_step_among_the_lines_of_all_controllers() -> None:
    """Slurm puts a process below some controllers only; the others say where slurmd runs."""
    place = parse_cgroup(STEP_OF_CGROUP_V1)
    assert (place.job, place.job_step) == ("90210", "3")
    assert (place.pod_uid, place.container_id) == (ABSENT, ABSENT)


def test_the_best_line_of_a_hybrid_machine_wins() -> None:
    text = f"3:rdma:/\n8:devices:/kubepods/pod{UID}/{ID}\n0::/system.slice/crio.service\n"
    place = parse_cgroup(text)
    assert (place.pod_uid, place.container_id) == (UID, ID)


OTHER_ID = "f" * 64


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((f"2:cpu:/docker/{OTHER_ID}", f"3:memory:/kubepods/pod{UID}"), (UID, ABSENT)),
        ((f"2:cpu:/kubepods/pod{UID}", f"3:memory:/kubepods/pod{UID}/{ID}"), (UID, ID)),
        ((f"2:cpu:/docker/{OTHER_ID}", f"3:memory:/kubepods/pod{UID}/{ID}"), (UID, ID)),
        (("2:cpu:/system.slice/x.service", f"3:memory:/docker/{ID}"), (ABSENT, ID)),
    ],
    ids=["a pod before a container", "both before a pod", "both before a container", "a container"],
)
def test_the_line_that_says_more_wins_in_any_order(
    lines: tuple[str, str], expected: tuple[object, object], turned: bool
) -> None:
    facts = parse_cgroup("\n".join(reversed(lines) if turned else lines))
    assert (facts.pod_uid, facts.container_id) == expected


def test_of_lines_that_say_as_much_the_first_wins() -> None:
    assert parse_cgroup(f"2:cpu:/docker/{ID}\n3:memory:/docker/{OTHER_ID}").container_id == ID


hexadecimal = st.text("0123456789abcdef", min_size=64, max_size=64)
uids = st.one_of(st.uuids().map(str), st.text("0123456789abcdef", min_size=32, max_size=32))
word = st.text("abcdefghijklmnopqrstuvwxyz0123456789._@-", min_size=1, max_size=12).filter(
    lambda text: "pod" not in text and text.strip(".") and not text.startswith("job_")
)
runtimes = st.sampled_from(
    [("cri-containerd", "containerd"), ("crio", "cri-o"), ("docker", "docker"), ("libpod", "podman")]
)


@st.composite
def pod_lines(draw: st.DrawFn) -> tuple[str, str, str]:
    uid, container = draw(uids), draw(hexadecimal)
    prefix = draw(st.lists(st.one_of(word, hexadecimal, st.just("..")), max_size=5))
    below = draw(st.lists(word, max_size=3))
    name = draw(runtimes)
    qos = draw(st.sampled_from(["", "burstable", "besteffort"]))
    style = draw(st.sampled_from(["systemd", "cgroupfs", "colons"]))
    if style == "cgroupfs":
        middle = ["kubepods", *([qos] if qos else []), f"pod{uid}", container]
    else:
        stem = f"kubepods-{qos}" if qos else "kubepods"
        pod = f"{stem}-pod{uid.replace('-', '_')}.slice"
        middle = (
            [f"{pod}:{name}:{container}"]
            if style == "colons"
            else ["kubepods.slice", pod, f"{name}-{container}.scope"]
        )
    controller = draw(st.sampled_from(["0::", "4:memory:", "1:name=systemd:", "2:cpuset,cpu:"]))
    return controller + "/" + "/".join([*prefix, *middle, *below]), uid, container


@given(
    pod_lines(),
    st.lists(st.sampled_from(["3:rdma:/", "0::/system.slice/x.service", "garbage", ""]), max_size=3),
)
def test_any_prefix_nesting_and_runtime(pod: tuple[str, str, str], noise: list[str]) -> None:
    line, uid, container = pod
    place = parse_cgroup("\n".join([*noise, line, *noise]))
    assert (place.pod_uid, place.container_id) == (uid, container)


@given(st.text())
def test_any_text_has_a_place_or_none(text: str) -> None:
    place = parse_cgroup(text)
    for value in (place.pod_uid, place.container_id, place.job):
        assert value is ABSENT or value.replace("_", "-") in text.replace("_", "-")


def test_nothing_is_nowhere() -> None:
    assert parse_cgroup("") is NO_CGROUP


def test_no_more_than_64_kib_are_read() -> None:
    line = f"0::/docker/{ID}"
    for before, facts in ((65_536 - len(line), ID), (65_537 - len(line), ABSENT)):
        assert parse_cgroup("x" * (before - 1) + "\n" + line).container_id == facts
