"""The compose profile `master` in a real Docker engine: the Slurm exporter with the clients of each version.

The image is built on Debian 13, the Dockerfile's default: its C library runs the clients of every version.
The container uses the machine's network, so the cluster's namespace gets a link to it.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuscope.cli import main
from tests.labs.debian_programs import LabUnavailable
from tests.labs.docker_lab import IMAGE_PYTHON, DockerLab, add_base_images, docker_lab
from tests.labs.gpuscope_images import build_role
from tests.labs.wheels import wheels_of_gpuscope
from tests.render.test_labs import skip_if_used
from tests.slurm_lab.cluster import SlurmCluster
from tests.slurm_lab.test_live import differing, parsed_samples
from tests.slurm_lab.truth import expected_samples
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LINK, LINK_INSIDE = "gsslurm0", "gsslurm1"
HERE, CONTROLLER = "10.255.254.1", "10.255.254.2"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
SERVICE = "slurm-exporter"
IMAGE = f"gpuscope:{SERVICE}"
PROFILE = ("compose", "--profile", "master")


@dataclass(frozen=True, slots=True)
class Project:
    lab: DockerLab
    folder: Path
    mounts: dict[str, str]  # source by target

    def doctor(self, without: str = "") -> str:
        """What the doctor prints in a container that lacks one of the mounts."""
        volumes = [
            word
            for target, source in self.mounts.items()
            if target != without
            for word in ("-v", f"{source}:{target}:ro")
        ]
        words = ("--network", "host", "--read-only", "--tmpfs", "/tmp", "--entrypoint", "gpuscope", IMAGE)
        return self.lab.docker("run", "--rm", *volumes, *words, "doctor", "--slurm", "commands", check=False)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerLab]:
    try:
        with docker_lab(number=1) as engine_lab:
            add_base_images(engine_lab)
            wheels = wheels_of_gpuscope(tmp_path_factory.mktemp("wheels"), IMAGE_PYTHON)
            build_role(engine_lab, SERVICE, wheels)
            yield engine_lab
    except LabUnavailable as missing:
        pytest.skip(f"Docker: {missing}")


@pytest.fixture
def link(cluster: SlurmCluster) -> Iterator[None]:
    """Between the machine's network and the one that slurmctld listens in."""
    inside = ("ip", "-n", cluster.namespace)
    try:
        run("ip", "link", "add", LINK, "type", "veth", "peer", "name", LINK_INSIDE, "netns", cluster.namespace)
        run("ip", "addr", "add", f"{HERE}/30", "dev", LINK)
        run("ip", "link", "set", LINK, "up")
        run(*inside, "addr", "add", f"{CONTROLLER}/30", "dev", LINK_INSIDE)
        run(*inside, "link", "set", LINK_INSIDE, "up")
        yield
    finally:
        subprocess.run(["ip", "link", "delete", LINK], capture_output=True)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@pytest.fixture
def project(lab: DockerLab, cluster: SlurmCluster, link: None, tmp_path: Path) -> Iterator[Project]:
    """The rendered project; only where Slurm's files are differs from a real master."""
    folder = tmp_path / "project"
    options = [
        "--gpu-access",
        "demo",
        "--slurm",
        "localhost",
        "--nodes",
        "localhost",
        "--instance",
        "localhost",
    ]
    assert main(["render", "compose", *options, "--out", str(folder)]) == 0
    sources = {"/etc/slurm": write_configuration(cluster, tmp_path), "/run/munge": cluster.outside}
    if not cluster.is_this_machine:
        root = cluster.outside.parents[1]
        programs = [f"/usr/bin/{name}" for name in ("sinfo", "squeue", "sdiag", "sshare", "scontrol")]
        for path in (*programs, f"{LIBRARIES}/slurm-wlm", f"{LIBRARIES}/libmunge.so.2"):
            sources[path] = (root / path.lstrip("/")).resolve()
    volumes = [f"{source}:{target}:ro" for target, source in sources.items()]
    override = {"services": {SERVICE: {"volumes": volumes}}}
    (folder / "compose.lab.yaml").write_text(json.dumps(override))
    settings = folder / ".env"
    settings.write_text(re.sub("(?m)^(COMPOSE_FILE=.*)$", r"\1:compose.lab.yaml", settings.read_text()))
    config = json.loads(lab.docker(*PROFILE, "config", "--format", "json", cwd=folder))
    mounts = config["services"][SERVICE]["volumes"]
    yield Project(lab, folder, {mount["target"]: mount["source"] for mount in mounts})
    lab.docker(*PROFILE, "down", "-v", "-t", "2", cwd=folder, check=False)


def write_configuration(cluster: SlurmCluster, folder: Path) -> Path:
    text = (cluster.outside / "slurm.conf").read_text()
    text = text.replace("(127.0.0.1)", f"({CONTROLLER})").replace(
        str(cluster.inside / "munge"), "/run/munge/munge"
    )
    (folder / "etc").mkdir()
    (folder / "etc/slurm.conf").write_text(text)
    for path in (folder, folder / "etc"):
        path.chmod(0o755)
    return folder / "etc"


def test_the_masters_container_shows_what_the_clients_say(cluster: SlurmCluster, project: Project) -> None:
    skip_if_used(8080)
    project.lab.docker(*PROFILE, "up", "-d", "--wait", "--no-deps", SERVICE, cwd=project.folder)

    def scrape() -> dict[str, float]:
        try:
            with urllib.request.urlopen("http://127.0.0.1:8080/metrics", timeout=10) as answer:
                return parsed_samples(answer.read().decode())
        except urllib.error.HTTPError as error:
            if error.code != 503:  # 503: there is no snapshot yet
                raise
            return {}

    wait_for(lambda: "slurm_gpus_total" in scrape(), "Slurm's numbers")
    wait_for(lambda: differing(expected_samples(cluster), scrape()) == {}, "the clients' numbers")
    doctor = (*PROFILE, "exec", "-T", SERVICE, "gpuscope", "doctor", "--slurm", "commands")
    said = project.lab.docker(*doctor, cwd=project.folder, check=False)
    assert re.search(r"Slurm \d\S* answers \(commands\)", said), said


MISSING = {
    "/run/munge": "mount /run/munge of the host",
    "/etc/slurm": "mount /etc/slurm of the host",
    f"{LIBRARIES}/slurm-wlm": f"mount {LIBRARIES}/slurm-wlm",
    f"{LIBRARIES}/libmunge.so.2": f"mount {LIBRARIES}/libmunge.so.2",
    "/usr/bin/squeue": "Slurm's clients are not here: squeue",
}
"""What the doctor says by the mount that is not there."""


def test_the_doctor_names_a_mount_that_is_missing(cluster: SlurmCluster, project: Project) -> None:
    complete = " ".join(project.doctor().split())
    for mount, named in MISSING.items():
        assert mount in project.mounts
        assert named not in complete
        assert named in (said := " ".join(project.doctor(without=mount).split())), (mount, said)
