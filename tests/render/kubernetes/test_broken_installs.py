"""An install that cannot work says what to change: in the readiness probe, the log, a metric and the doctor.

Each one is then changed as the doctor says, and works.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.render.kubernetes.lab_scene import CHART, WHOLE_GPUS, Scene, get, pod_document, status_of, values_of

pytestmark = pytest.mark.slow
SELECTOR = "app.kubernetes.io/component=agent"
PORT = 9401
OTHER_RESOURCE = "example.com/a100"
USER_PATH = "/spec/template/spec/containers/0/securityContext/runAsUser"


@dataclass(frozen=True, slots=True)
class BrokenInstall:
    values: tuple[str, ...]
    ready_status: int
    reason: str
    """In the probe's answer and in the log."""
    source: str
    """What gpuscope_source_up is 0 for; the alert SourceDown is on it."""
    doctor_says: tuple[str, ...]
    fixed_values: tuple[str, ...] = ()


BROKEN = {
    "no driver": BrokenInstall(
        ("--set", "driver.access=runtime"),
        503,
        "libnvidia-ml.so.1",
        "nvml",
        ("libnvidia-ml.so.1 was not found", "runtimeClassName: nvidia"),
    ),
    "no permission": BrokenInstall(
        (),
        200,
        "kubelet.sock: Permission denied",
        "kubelet",
        ("no permission to open", "securityContext: runAsUser: 0"),
    ),
    "resource name": BrokenInstall(
        (),
        200,
        f"devices of {OTHER_RESOURCE}, which is not known as a GPU resource: their pods are not shown",
        "kubelet",
        (f"the kubelet allocated devices of {OTHER_RESOURCE}", f"agent.resourceNames={{{OTHER_RESOURCE}}}"),
        ("--set", f"agent.resourceNames={{{OTHER_RESOURCE}}}"),
    ),
}


@dataclass(frozen=True, slots=True)
class BrokenScene:
    scene: Scene
    namespace: str

    def install(self, *values: str) -> None:
        self.scene.lab.helm(
            "upgrade", "--install", "broken", CHART, "-n", self.namespace, "--create-namespace",
            *self.scene.values, *values, "--set", f"agent.port={PORT}",
        )  # fmt: skip

    def run_as(self, user: int) -> None:
        """As an edited manifest or an admission policy does; the chart has no value for it."""
        patch = json.dumps([{"op": "replace", "path": USER_PATH, "value": user}])
        self.scene.lab.kubectl(
            "patch", "-n", self.namespace, "ds/broken-gpuscope-agent", "--type=json", f"-p={patch}"
        )

    def url(self) -> str:
        """Of the newest pod; empty while it has no address."""
        found = [pod["status"].get("podIP", "") for pod in self.scene.pods(self.namespace, SELECTOR)]
        return f"http://{found[-1]}:{PORT}" if found and found[-1] else ""

    def ready(self) -> tuple[int, str]:
        url = self.url()
        return status_of(f"{url}/-/ready") if url else (0, "")

    def log(self) -> list[str]:
        lab = self.scene.lab
        return lab.kubectl("logs", "-n", self.namespace, "-l", SELECTOR, "--tail=-1", check=False).splitlines()

    def sources_down(self) -> set[str]:
        text = get(f"{self.url()}/metrics")
        names = [line.split('source="')[1].split('"')[0] for line in text.splitlines()
                 if line.startswith("gpuscope_source_up{")]  # fmt: skip
        return {name for name, up in zip(names, values_of(text, "gpuscope_source_up"), strict=True) if up == 0}

    def doctor(self) -> str:
        command = ("exec", "-n", self.namespace, "ds/broken-gpuscope-agent", "--", "gpuscope", "doctor")
        return self.scene.lab.kubectl(*command, check=False)


@pytest.fixture
def broken(scene: Scene, request: pytest.FixtureRequest) -> Iterator[BrokenScene]:
    """In a namespace of its own; a device plugin with a resource name of its own beside NVIDIA's."""
    name, lab = request.param, scene.lab
    made = BrokenScene(scene, f"broken-{name.split()[1]}")
    lab.kubectl("create", "namespace", made.namespace)
    plugin = None
    if name == "resource name":
        plugin = lab.offer_devices(OTHER_RESOURCE, [scene.driver.cards[WHOLE_GPUS[0]].uuid])
        lab.apply(pod_document("train", OTHER_RESOURCE, made.namespace, {}))
        lab.wait_until(lambda: scene.phase("train", made.namespace) == "Running", "the pod does not run")
    made.install(*BROKEN[name].values)
    if name == "no permission":
        made.run_as(1000)
    yield made
    lab.helm("uninstall", "broken", "-n", made.namespace, "--wait")
    lab.kubectl("delete", "namespace", made.namespace, "--wait")
    if plugin is not None:
        plugin.stop()
        lab.plugins.remove(plugin)


@pytest.mark.parametrize(
    ("broken", "name"), [(name, name) for name in BROKEN], indirect=["broken"], ids=[*BROKEN]
)
def test_a_broken_install_says_what_to_change(scene: Scene, broken: BrokenScene, name: str) -> None:
    expected, lab = BROKEN[name], scene.lab
    unready = lab.wait_until(
        lambda: (answer := broken.ready())[1].count(expected.reason) and answer, "the probe does not say why"
    )
    assert unready[0] == expected.ready_status
    logged = lab.wait_until(
        lambda: [
            line for line in broken.log() if f"source {expected.source}" in line and expected.reason in line
        ],
        "no line in the log",
    )
    assert len(logged) == 1, "once, not at each attempt"
    assert "WARNING" in logged[0]
    assert expected.source in broken.sources_down()
    said = lab.wait_until(broken.doctor, "the doctor does not run")
    assert [words for words in expected.doctor_says if words not in said] == [], said
    if name == "no permission":
        broken.run_as(0)
    else:
        broken.install(*expected.fixed_values)
    lab.wait_until(lambda: broken.ready()[0] == 200 and expected.reason not in broken.ready()[1], "not mended")
    lab.wait_until(lambda: expected.source not in broken.sources_down(), "the alert's metric stays")


def test_a_wrong_folder_of_the_kubelet_is_an_event_and_is_not_made(scene: Scene, tmp_path: Path) -> None:
    lab, broken = scene.lab, BrokenScene(scene, "broken-folder")
    folder = tmp_path / "kubelet"
    lab.kubectl("create", "namespace", broken.namespace)
    try:
        broken.install("--set", f"kubelet.rootDir={folder}")
        wanted = f"{folder}/pod-resources is not a directory"
        lab.wait_until(lambda: wanted in lab.kubectl("get", "events", "-n", broken.namespace), "no event")
        assert not folder.exists()
        broken.install()
        lab.wait_until(lambda: broken.ready()[0] == 200, "not mended")
    finally:
        lab.helm("uninstall", "broken", "-n", broken.namespace, "--wait")
        lab.kubectl("delete", "namespace", broken.namespace, "--wait")
