"""The users of the simulated fleet with their accounts, and the names of their jobs and pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


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
