"""The images of deploy/docker/Dockerfile as archives that containerd imports, built by the Docker lab.

An archive is kept in the cache under a hash of the files that it is made of, so that a second run of the
Kubernetes lab does not build again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.labs.debian_programs import lab_cache
from tests.labs.docker_lab import BASE, BUILD_BASE, IMAGE_PYTHON, DockerLab, add_base_images, docker_lab
from tests.labs.wheels import ROOT, wheels_of_gpuscope

MADE_OF = ("src/gpuscope", "deploy/docker", "deploy/prometheus", "pyproject.toml", "constraints.txt")


def image_name(role: str) -> str:
    return f"docker.io/library/gpuscope:{role}"


def image_archives(*roles: str) -> dict[str, Path]:
    """Raises LabUnavailable where no Docker engine can run; skips where PyPI cannot be reached."""
    folder = lab_cache() / "images"
    folder.mkdir(exist_ok=True)
    fingerprint = _fingerprint()
    archives = {role: folder / f"{role}-{fingerprint}.tar" for role in roles}
    missing = [role for role, archive in archives.items() if not archive.exists()]
    if missing:
        for old in folder.glob("*.tar"):
            old.unlink()
        missing = list(roles)
        with tempfile.TemporaryDirectory() as wheels, docker_lab() as lab:
            wheels_of_gpuscope(Path(wheels), IMAGE_PYTHON)
            add_base_images(lab)
            for role in missing:
                build_role(lab, role, Path(wheels))
                fresh = folder / f".{role}.new"
                lab.docker("save", f"gpuscope:{role}", "-o", fresh)
                fresh.replace(archives[role])
    return archives


def build_role(lab: DockerLab, role: str, wheels: Path) -> None:
    lab.docker(
        "build", "--quiet", "--network", "none", "-f", ROOT / "deploy/docker/Dockerfile", "--target", role,
        "-t", f"gpuscope:{role}", "--build-arg", f"BASE={BASE}", "--build-arg", f"BUILD_BASE={BUILD_BASE}",
        "--build-context", f"wheels={wheels}", "--build-arg", "PACKAGE=gpuscope",
        "--build-arg", "PIP_NO_INDEX=1",
        ROOT,
    )  # fmt: skip


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in _files():
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _files() -> Iterator[Path]:
    for name in MADE_OF:
        top = ROOT / name
        found = sorted(top.rglob("*")) if top.is_dir() else [top]
        yield from (path for path in found if path.is_file() and "__pycache__" not in path.parts)
