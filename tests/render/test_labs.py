"""The image and the compose project in a real Docker engine, and the image in containerd.

The base images are Debian's Python instead of python:slim, and Prometheus and Alertmanager come from
tools/get-engines: public registries may be out of reach. Grafana's image cannot be had that way; its service is
checked by compose only (test_compose_project.py).
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli import main
from tests.engines import engine
from tests.fake_cuda.build import library as cuda_library
from tests.fake_cuda.driver import FakeCuda
from tests.fake_nvml.build import Unavailable, library
from tests.fake_nvml.driver import FakeDriver
from tests.labs.debian_programs import LabUnavailable
from tests.labs.docker_lab import BASE, IMAGE_PYTHON, DockerLab, add_base_images, docker_lab
from tests.labs.gpuscope_images import build_role
from tests.labs.wheels import wheels_of_gpuscope
from tests.render.dashboard_queries import fill, queries_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
ROLES = ("gpuscope", "dcgm-exporter", "nvidia_gpu_exporter", "slurm-exporter", "dcgmproftester")
MAX_COMPRESSED_BYTES = 120_000_000
PATIENCE_SECONDS = 120
NVML_IN_IMAGE = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
CUDA_IN_IMAGE = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


def get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels_of_gpuscope(tmp_path_factory.mktemp("wheels"), IMAGE_PYTHON)


@pytest.fixture(scope="module")
def lab(wheels: Path) -> Iterator[DockerLab]:
    """An engine with the images of every role."""
    try:
        with docker_lab() as engine_lab:
            add_base_images(engine_lab)
            for role in ROLES:
                build_role(engine_lab, role, wheels)
            yield engine_lab
    except LabUnavailable as missing:
        pytest.skip(f"Docker: {missing}")


def test_the_image_is_small_has_no_compiler_and_is_not_root(lab: DockerLab, tmp_path: Path) -> None:
    lab.docker("save", "gpuscope:gpuscope", "-o", tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        layers = [archive.extractfile(name) for name in json.load(manifest)[0]["Layers"]]
        compressed = sum(len(gzip.compress(layer.read(), 6)) for layer in layers if layer is not None)
    print(f"compressed image: {compressed / 1e6:.1f} MB")
    assert compressed <= MAX_COMPRESSED_BYTES
    programs = (
        "import shutil, os; print([p for p in ('gcc', 'cc', 'pip', 'pip3') if shutil.which(p)], os.getuid())"
    )
    found = lab.docker(
        "run", "--rm", "--read-only", "--entrypoint", "python3", "gpuscope:gpuscope", "-c", programs
    )
    assert found.strip() == "[] 65532"


HARDENED = "--read-only --cap-drop ALL --security-opt no-new-privileges --tmpfs /tmp"


@pytest.mark.parametrize(("role", "port", "command", "metric"), [
    ("dcgm-exporter", 9400, "", "DCGM_FI_DEV_GPU_UTIL{"),
    ("nvidia_gpu_exporter", 9835, "", "nvidia_smi_gpu_info{"),
    ("gpuscope", 9400, "agent", "gpuscope_gpu_info{"),
    ("gpuscope", 9470, "", ""),  # its metrics need a login
])  # fmt: skip
def test_each_role_becomes_healthy_on_its_port(
    lab: DockerLab, role: str, port: int, command: str, metric: str
) -> None:
    options = f"run -d --name role {HARDENED} -e GPUSCOPE_SOURCE=demo -p 127.0.0.1:2{port}:{port}"
    lab.docker(*options.split(), f"gpuscope:{role}", *command.split())
    wait_until(lambda: lab.inspect("role")["State"]["Health"]["Status"] == "healthy", f"{role} is not healthy")
    if metric:
        wait_until(lambda: metric in get(f"http://127.0.0.1:2{port}/metrics"), f"{metric} in {role}")
    lab.docker("rm", "-f", "role")


def test_dcgm_exporters_own_command_lines_work(lab: DockerLab) -> None:
    """As NVIDIA's manifests call it: by path, with the file of /etc/dcgm-exporter."""
    run = ("run", "--rm", "-e", "GPUSCOPE_SOURCE=demo", "gpuscope:dcgm-exporter")
    flags = ("-f", "/etc/dcgm-exporter/dcp-metrics-included.csv", "--once")
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{" in lab.docker(*run, *flags)
    by_path = "run --rm -e GPUSCOPE_SOURCE=demo --entrypoint /usr/bin/dcgm-exporter gpuscope:dcgm-exporter"
    assert "DCGM_FI_DEV_SM_CLOCK{" in lab.docker(*by_path.split(), *flags)


SEED_ARGUMENTS = ("--no-dcgm-validation", "-t 1004", "-d 120")
"""Of NVIDIA's example pod: flag and value are one word."""


def test_the_image_for_dcgmproftester_takes_the_arguments_of_nvidias_pod(
    lab: DockerLab, tmp_path: Path
) -> None:
    """With the fake CUDA driver mounted as the NVIDIA runtime mounts the real one."""
    try:
        libraries = {NVML_IN_IMAGE: library(), CUDA_IN_IMAGE: cuda_library()}
    except Unavailable as missing:
        pytest.skip(str(missing))
    driver = FakeDriver(tmp_path / "state")
    driver.gpus(1, model="H100")
    cuda = FakeCuda(tmp_path / "cuda", driver)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    mounts = [word for target, path in libraries.items() for word in ("-v", f"{path}:{target}:ro")]
    state = f"-v {tmp_path}:/driver -e FAKE_NVML_STATE=/driver/state -e FAKE_CUDA=/driver/cuda"
    run = (
        "run",
        "--rm",
        "--name",
        "proftester",
        "--read-only",
        *mounts,
        *state.split(),
        "gpuscope:dcgmproftester",
    )
    shown = lab.docker(*run, *SEED_ARGUMENTS[:2], "-d 3")
    assert shown.startswith("half-precision matrix products on the tensor cores, 3 s on GPU 0")
    assert "TFLOP/s" in shown
    assert cuda.misuse() == []
    assert cuda.leaks() == []
    # The words of the pod themselves, for as long as it takes to see that it runs for 120 s.
    lab.docker("run", "-d", *run[2:], *SEED_ARGUMENTS)
    log = wait_until(lambda: lab.docker("logs", "proftester", check=False), "its first line")
    assert log.startswith("half-precision matrix products on the tensor cores, 120 s on GPU 0")
    lab.docker("stop", "-t", "10", "proftester")


def test_a_driver_library_that_is_mounted_is_used(lab: DockerLab, tmp_path: Path) -> None:
    """Without the NVIDIA runtime: the library and the devices of the machine, as the first tutorials do it."""
    try:
        nvml = library()
    except Unavailable as missing:
        pytest.skip(str(missing))
    driver = FakeDriver(tmp_path / "state")
    driver.gpus(2, model="A100")
    tmp_path.chmod(0o755)
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    mounts = f"-v {nvml}:{NVML_IN_IMAGE}:ro -v {tmp_path}:/driver:ro -e FAKE_NVML_STATE=/driver/state"
    run = ("run", "--rm", "--read-only", "--pid", "host", *mounts.split())
    snapshot = json.loads(lab.docker(*run, "gpuscope:gpuscope", "snapshot", "--json"))
    assert len(snapshot["devices"]) == 2
    doctor = lab.docker(*run, "gpuscope:gpuscope", "doctor", check=False)
    assert "NVML answers" in doctor
    assert "was not found" not in doctor.split("NVML answers")[0]


def test_containerd_runs_the_image(lab: DockerLab, tmp_path: Path) -> None:
    lab.docker("save", "gpuscope:gpuscope", "-o", tmp_path / "image.tar")
    ctr = ["ctr", "--address", str(lab.folder / "exec/containerd/containerd.sock"), "-n", "gpuscope"]

    def run(*argv: str) -> str:
        done = subprocess.run([*ctr, *argv], env=lab.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("images", "import", str(tmp_path / "image.tar"))
    image = run("images", "ls", "-q").strip()
    agent = ("gpuscope", "agent", "--once", "--source", "demo")
    assert "gpuscope_gpu_info{" in run("run", "--rm", "--read-only", image, "agent", *agent)
    run("images", "rm", image)


@pytest.fixture
def project(lab: DockerLab, tmp_path: Path) -> Iterator[Path]:
    """A rendered project with simulated GPUs, and images of the engines' programs."""
    folder, here = tmp_path / "project", "localhost"
    (tmp_path / "empty").mkdir()
    engines = engine("prometheus").parent.parent
    for name in ("prometheus", "alertmanager", "node-exporter"):
        lab.docker(
            "build", "--quiet", "-f", ROOT / "tests/labs/engine_images.Dockerfile", "--target", name,
            "-t", f"lab/{name}", "--build-arg", f"BASE={BASE}",
            "--build-context", f"engines={engines}", tmp_path,
        )  # fmt: skip
    options = ["--gpu-access", "demo", "--instance", here, "--nodes", here]
    assert main(["render", "compose", *options, "--out", str(folder)]) == 0
    (folder / "compose.lab.yaml").write_text(
        "services: {node-exporter: {volumes: !override [], command: !override []}}\n"
    )
    with (folder / ".env").open("a") as settings:
        settings.write("GPUSCOPE_IMAGE=gpuscope:gpuscope\n")
        # A machine whose root is not a shared mount refuses the node exporter's.
        settings.write("COMPOSE_FILE=compose.yaml:compose.demo.yaml:compose.lab.yaml\n")
        for name in ("PROMETHEUS", "ALERTMANAGER", "NODE_EXPORTER"):
            settings.write(f"{name}_IMAGE=lab/{name.lower().replace('_', '-')}\n")
    yield folder
    profiles = [word for profile in ("single", "up", "node", "master") for word in ("--profile", profile)]
    lab.docker("compose", *profiles, "down", "-v", "-t", "2", cwd=folder, check=False)


def skip_if_used(*ports: int) -> None:
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} of this machine is in use")


def query(expression: str) -> list[Any]:
    answer = get(f"http://127.0.0.1:9090/api/v1/query?query={urllib.request.quote(expression)}")  # type: ignore[attr-defined]
    result: list[Any] = json.loads(answer)["data"]["result"] if answer else []
    return result


def test_compose_brings_one_server_up_with_data(lab: DockerLab, project: Path) -> None:
    skip_if_used(9090, 9093)
    began = time.monotonic()
    up = "compose --profile single up -d --wait agent prometheus alertmanager"
    lab.docker(*up.split(), cwd=project)
    wait_until(lambda: query('count(gpuscope_gpu_info{instance="localhost"}) == 8'), "data in Prometheus")
    print(f"compose up to data: {time.monotonic() - began:.1f} s")
    fleet = json.loads((project / "grafana/dashboards/gpuscope-fleet.json").read_text())
    panels = [expr for title, expr in queries_of(fleet) if not title.startswith("annotation")]
    for expr in panels:
        wait_until(partial(query, fill(expr, {"instance": ".*"})), f"data for the dashboard: {expr}")
    print(f"compose up to a dashboard with data: {time.monotonic() - began:.1f} s")
    assert query("up{job='gpuscope'}")[0]["value"][1] == "1"
    assert "http://alertmanager:9093" in get("http://127.0.0.1:9090/api/v1/alertmanagers")
    # Data survives: the containers are removed, the volumes stay.
    lab.docker("compose", "--profile", "single", "down", "-t", "5", cwd=project)
    lab.docker("compose", "--profile", "single", "up", "-d", "--wait", "agent", "prometheus", cwd=project)
    wait_until(lambda: query("count_over_time(gpuscope_gpu_up{gpu='0'}[10m]) > 1"), "history from before")


def test_compose_brings_gpuscope_alone_up(lab: DockerLab, project: Path) -> None:
    skip_if_used(9470)
    lab.docker("compose", "--profile", "up", "up", "-d", "--wait", cwd=project)
    assert "<!doctype html>" in get("http://127.0.0.1:9470/")
    logs = lab.docker("compose", "--profile", "up", "logs", cwd=project)
    assert "one-time token" in logs
    assert "open http://localhost:9470 on the machine that publishes this container's port" in logs
    make_token = "compose exec -T gpuscope gpuscope user token t --data /var/lib/gpuscope"
    made = lab.docker(*make_token.split(), cwd=project)
    token = max(re.findall(r"\S+", made), key=len)
    request = urllib.request.Request(
        "http://127.0.0.1:9470/api/v1/query?query=count(gpuscope_gpu_info)",
        headers={"Authorization": f"Bearer {token}"},
    )

    def has_all_gpus() -> bool:
        with urllib.request.urlopen(request) as answer:
            result = json.load(answer)["data"]["result"]
        return bool(result) and result[0]["value"][1] == "32"

    wait_until(has_all_gpus, "32 GPUs in gpuscope")


def test_compose_brings_node_and_master_up(lab: DockerLab, project: Path) -> None:
    skip_if_used(9090, 9093, 9100, 9400)
    lab.docker(*["compose", "--profile", "node", "up", "-d", "--wait"], cwd=project)
    master = "compose --profile master up -d --wait master-prometheus master-alertmanager"
    lab.docker(*master.split(), cwd=project)
    wait_until(lambda: len(query("up == 1")) == 2, "both targets up")
    assert {row["metric"]["job"] for row in query("up == 1")} == {"node", "gpuscope"}
