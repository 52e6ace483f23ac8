"""Jobs and their processes on GPUs: PID, start time, memory and owner, always the same for the same seed.

A job is planned once and repeats in every round of its track with a new PID, job id and pod name, like a
nightly batch job. Its processes are not in /proc, so the owner is set here.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from gpuscope.demo.workload import Workload
from gpuscope.model.readings import ABSENT, Owner

# The users of the simulated fleet with their accounts, and the names of their jobs and pods.


@dataclass(frozen=True, slots=True)
class Person:
    user: str
    group: str  # also the Slurm account


PEOPLE: Final = (
    Person("alice", "vision"),
    Person("bjorn", "vision"),
    Person("chidi", "nlp"),
    Person("dana", "nlp"),
    Person("emre", "nlp"),
    Person("fatima", "chem"),
    Person("goran", "chem"),
    Person("hye-jin", "robotics"),
    Person("isamu", "robotics"),
    Person("juan", "climate"),
    Person("klara", "climate"),
    Person("lei", "speech"),
)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A Kubernetes workload: the names of its pods and its namespace."""

    name: str
    namespace: str
    container: str
    image: str


SERVICES: Final = (
    Deployment("llm-chat", "serving", "vllm", "vllm/vllm-openai:v0.9.2"),
    Deployment("embeddings", "serving", "tritonserver", "nvcr.io/nvidia/tritonserver:25.05-py3"),
    Deployment("asr-stream", "speech", "server", "harbor.local/speech/asr:2.14"),
    Deployment("reranker", "search", "triton", "nvcr.io/nvidia/tritonserver:25.05-py3"),
)
BATCH: Final = (
    Deployment("finetune", "ml-train", "trainer", "nvcr.io/nvidia/pytorch:25.05-py3"),
    Deployment("sweep", "ml-train", "trial", "harbor.local/ml/sweep:7"),
    Deployment("transcode", "media", "ffmpeg", "harbor.local/media/ffmpeg:6.1"),
)
NOTEBOOKS: Final = Deployment("jupyter", "jupyterhub", "notebook", "quay.io/jupyter/pytorch-notebook:cuda12")


SLURM: Final = "slurm"
KUBERNETES: Final = "kubernetes"
BARE: Final = "bare"

# Job ids increase with time, as those of slurmctld; several nodes may start a job in the same half minute.
_FIRST_JOB_AT: Final = 1_735_689_600  # 2025-01-01
_JOB_SLOT_SECONDS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    key: str  # unique in the fleet; the seed of everything random about the job
    start: float  # seconds of its track
    workload: Workload
    person: Person
    command: str
    manager: str = SLURM  # what started it: SLURM, KUBERNETES or BARE
    deployment: Deployment | None = None
    partition: str = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One process of a job on one GPU or instance."""

    job: Job
    rank: int = 0
    memory_share: float = 0.5  # of the memory of the GPU or instance, once everything is allocated
    sm_share: float = 1.0  # of the utilisation
    kind: str = "C"
    has_process: bool = True  # False: the GPU was allocated to the job, which does not use it
    leak_seconds: float = (
        0.0  # the time in which its memory grows until the GPU is full; then the process restarts
    )


@dataclass(frozen=True, slots=True)
class FirstProcess:
    """The first process of a job in one round, and the owner of all its processes."""

    started_at: float
    pid: int
    owner: Owner


def digest(*parts: object) -> str:
    """64 hexadecimal digits that depend only on `parts`."""
    return blake2b("/".join(map(str, parts)).encode(), digest_size=32).hexdigest()


def run_of(job: Job, round_start: float, round_number: int) -> FirstProcess:
    """Rank N of the job has this PID plus N."""
    salt = digest(job.key, round_number)
    started_at = round(round_start + job.start, 2)
    pid = 2_048 + 16 * (int(salt[:8], 16) % 260_000)  # below the kernel's 4,194,304, room for 16 ranks
    return FirstProcess(started_at, pid, _owner(job, started_at, salt))


def _owner(job: Job, started_at: float, salt: str) -> Owner:
    if job.manager == SLURM:
        slot = int((started_at - _FIRST_JOB_AT) // _JOB_SLOT_SECONDS)
        return Owner(
            user=job.person.user,
            group=job.person.group,
            job=str(max(1, slot) * 4 + int(salt[8:10], 16) % 4),
            job_step="0",
            job_account=job.person.group,
            job_partition=job.partition,
        )
    if job.manager == KUBERNETES and job.deployment is not None:
        return _pod_owner(job, job.deployment, salt)
    return Owner(user=job.person.user, group=job.person.group)


def _pod_owner(job: Job, deployment: Deployment, salt: str) -> Owner:
    notebook = deployment.container == "notebook"
    name = f"{deployment.name}-{job.person.user}" if notebook else _replica_name(deployment.name, salt)
    return Owner(
        user="jovyan" if notebook else ABSENT,  # the other images run as a UID without a name on the host
        container_id=salt,
        container=deployment.container,
        image=deployment.image,
        pod=name,
        namespace=deployment.namespace,
        pod_uid=as_uuid(digest(salt, "pod")),
    )


def _replica_name(name: str, salt: str) -> str:
    # Kubernetes' alphabet for suffixes: no vowels and no 0, 1 and 3, so that no words appear by chance.
    letters = "bcdfghjklmnpqrstvwxz2456789"
    picked = "".join(letters[int(salt[i : i + 2], 16) % len(letters)] for i in range(10, 40, 2))
    return f"{name}-{picked[:9]}-{picked[9:14]}"


def as_uuid(hexadecimal: str) -> str:
    h = hexadecimal
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:32]}"
