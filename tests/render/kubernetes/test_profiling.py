"""`profiling.dcgm` in the cluster: the agent reads a T4's profiling values from a host engine.

A stand-in takes the place of NVIDIA's programs, which no package index has. Shown is the chart's side: the
copied `dcgmi`, addresses, capabilities, an engine that restarts. Not shown: that NVIDIA's image has what the
init container looks for, and that SYS_ADMIN is enough for its profiling module.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.vendors.nvidia.dcgm.devices import DEFAULT_IDS
from tests.fake_nvml.driver import FakeDriver
from tests.labs.debian_programs import unpack
from tests.labs.gpuscope_images import image_archives
from tests.labs.kubernetes_configuration import NODE_ADDRESS
from tests.labs.lab_images import read_layers, write_image
from tests.render.kubernetes.lab_scene import NAMESPACE, RELEASE, Scene, label_sets, values_of
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
FAKE = Path(__file__).parents[2] / "fake_dcgmi"
IMAGE = "localhost/dcgm:lab"
SYS_ADMIN = 1 << 21
SM_OCCUPANCY = 0.25
AGENT = f"ds/{RELEASE}-gpuscope-agent"
PROFILING = "gpuscope_gpu_sm_occupancy_ratio"


def dcgm_archive(folder: Path) -> Path:
    """An image with the programs' names and places of DCGM's, on the layers of an image with Python."""
    added = io.BytesIO()
    with tarfile.open(fileobj=added, mode="w") as files:
        for program, source in (("dcgmi", "remote_dcgmi.py"), ("nv-hostengine", "host_engine.py")):
            member = files.gettarinfo(FAKE / source, f"usr/bin/{program}")
            member.mode, member.uid, member.gid = 0o755, 0, 0
            files.addfile(member, io.BytesIO((FAKE / source).read_bytes()))
        for name in ("dcgmi.py", "layouts.py"):
            files.add(FAKE / name, f"opt/fake_dcgmi/{name}")
        files.add(unpack(("busybox-static",), "bookworm") / "bin/busybox", "usr/bin/busybox")
        for command in ("cp", "find", "ls"):  # DCGM's image has them from coreutils and findutils
            link = tarfile.TarInfo(f"usr/bin/{command}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            files.addfile(link)
        library = tarfile.TarInfo("usr/lib/x86_64-linux-gnu/libdcgm.so.4")
        files.addfile(library)
        # Every image has folders that only root may enter; the init container is not root.
        closed = tarfile.TarInfo("var/lib/closed")
        closed.type, closed.mode = tarfile.DIRTYPE, 0o700
        files.addfile(closed)
    archive = folder / "dcgm.tar"
    layers = read_layers(image_archives("gpuscope", "dcgm-exporter")["gpuscope"])
    environment = ["PATH=/usr/bin:/bin", "FAKE_DCGMI=/opt/driver/lib/dcgm.json"]
    environment.append("FAKE_DCGMI_PROGRAM=/opt/fake_dcgmi/dcgmi.py")
    write_image(archive, IMAGE, [*layers, added.getvalue()], {"Env": environment})
    return archive


@pytest.fixture(scope="module")
def values(scene: Scene) -> Iterator[list[str]]:
    """Two T4s in a driver of their own, and DCGM's values for them."""
    scene.lab.add_image(dcgm_archive(scene.lab.folder))
    folder = scene.lab.driver_folder
    driver = FakeDriver(folder / "t4-state", seed="t4")
    driver.gpus(2, model="T4")
    gpus = [
        {
            "id": index,
            "values": {"54": card.uuid, "1003": SM_OCCUPANCY},
        }
        for index, card in enumerate(driver.cards)
    ]
    state = {"layout": "4.6", "known": sorted(DEFAULT_IDS), "gpus": gpus}
    (folder / "dcgm.json").write_text(json.dumps(state))
    environment = [{"name": "FAKE_NVML_STATE", "value": "/opt/driver/lib/t4-state"}]
    yield [
        "--set", f"profiling.image={IMAGE}", "--set-json", f"agent.extraEnv={json.dumps(environment)}",
    ]  # fmt: skip
    scene.install()


def occupancy(scene: Scene) -> list[float]:
    return values_of(scene.metrics(), PROFILING)


def capabilities(text: str) -> int:
    (line,) = [line for line in text.splitlines() if line.startswith("CapEff:")]
    return int(line.split()[1], 16)


def test_a_sidecar_gives_profiling_values_and_only_it_has_sys_admin(scene: Scene, values: list[str]) -> None:
    scene.install(*values)
    scene.wait_for_gpus(2)
    assert occupancy(scene) == [], "the driver of a T4 has none"
    scene.install(*values, "--set", "profiling.dcgm=sidecar")
    wait_for(lambda: occupancy(scene) == [SM_OCCUPANCY] * 2, "DCGM's values", scene.metrics)
    names = {row["model"] for row in label_sets(scene.metrics(), "gpuscope_gpu_info")}
    assert names == {"Tesla T4"}, "the rest is the driver's"
    engine = scene.lab.kubectl("logs", "-n", NAMESPACE, AGENT, "-c", "nv-hostengine")
    assert capabilities(engine) == SYS_ADMIN
    own = scene.lab.kubectl(
        "exec", "-n", NAMESPACE, AGENT, "-c", "agent", "--", "python3", "-c",
        "print(open('/proc/self/status').read())",
    )  # fmt: skip
    assert capabilities(own) == 0


def test_a_restarted_sidecar_is_read_again(scene: Scene, values: list[str]) -> None:
    scene.install(*values, "--set", "profiling.dcgm=sidecar")
    wait_for(lambda: occupancy(scene), "DCGM's values")
    end_container(scene, "nv-hostengine")
    wait_for(lambda: not occupancy(scene), "no stale values")
    wait_for(lambda: occupancy(scene), "DCGM's values of the new engine")
    scene.wait_for_gpus(2)


def end_container(scene: Scene, name: str) -> None:
    """Kills the main process of one container of the agent's pod, as a crash would."""
    statuses = scene.agent_pod()["status"]["containerStatuses"]
    (container,) = [one["containerID"].rpartition("/")[2] for one in statuses if one["name"] == name]
    scene.lab.ctr("tasks", "kill", "-s", "SIGKILL", container)


def test_an_existing_host_engine_of_the_node(scene: Scene, values: list[str]) -> None:
    """At $(HOST_IP), which the kubelet puts into the arguments; it ends and comes back."""
    lab = scene.lab
    scene.install(*values, "--set", "profiling.dcgm=hostengine")
    pod = scene.agent_pod()
    assert [container["name"] for container in pod["spec"]["containers"]] == ["agent"]
    doctor = lab.kubectl("exec", "-n", NAMESPACE, AGENT, "--", "gpuscope", "doctor", check=False)
    assert "systemctl start nvidia-dcgm" in doctor, doctor

    def start() -> None:
        lab.spawn(
            "nv-hostengine", sys.executable, FAKE / "host_engine.py",
            "-n", "-b", NODE_ADDRESS, "--port", "5555",
            FAKE_DCGMI=str(lab.driver_folder / "dcgm.json"),
        )  # fmt: skip

    for _ in range(2):
        start()
        wait_for(lambda: occupancy(scene) == [SM_OCCUPANCY] * 2, "DCGM's values", lambda: doctor)
        lab.stop("nv-hostengine")
        wait_for(lambda: not occupancy(scene), "no stale values")
    scene.wait_for_gpus(2)
