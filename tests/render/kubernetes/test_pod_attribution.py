"""Pods of GPUs and processes in the agent, as kubectl sees them; the agent's cost, rights and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.labs.kubernetes_configuration import NODE
from tests.render.kubernetes.lab_scene import MIG, NAMESPACE, RELEASE, WHOLE, Scene, label_sets
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
MIB = 1 << 20


def attribution_agrees(scene: Scene, expected: dict[int, Any]) -> bool:
    return scene.allocations() == scene.owners_by_device() and scene.process_owners() == expected


def difference(scene: Scene, expected: dict[int, Any]) -> str:
    return (
        f"kubectl: {scene.owners_by_device()}\nagent: {scene.allocations()}\n"
        f"processes: {expected}\nagent: {scene.process_owners()}"
    )


@pytest.fixture(autouse=True, scope="module")
def installed(scene: Scene, pods: None) -> None:
    scene.install()


def test_pod_namespace_and_container_are_those_of_kubectl(scene: Scene) -> None:
    expected = scene.run_on_gpus()
    assert len(expected) == 4
    wait_for(
        lambda: attribution_agrees(scene, expected), "the agent's view", lambda: difference(scene, expected)
    )


def test_the_view_is_right_after_a_kubelet_restart_and_a_deletion(scene: Scene) -> None:
    scene.lab.restart_kubelet()
    # Only a kubelet that the agent reached again knows this pod.
    scene.start_pod("late", WHOLE)
    expected = scene.run_on_gpus()
    assert len(expected) == 5
    wait_for(lambda: attribution_agrees(scene, expected), "a new pod", lambda: difference(scene, expected))
    scene.lab.kubectl("delete", "pod", "train", "-n", "ml", "--wait")
    expected = scene.run_on_gpus()
    assert len(expected) == 4
    wait_for(lambda: attribution_agrees(scene, expected), "a deletion", lambda: difference(scene, expected))


def test_dcgm_series_have_the_pods_of_kubectl(scene: Scene) -> None:
    """With one value of the chart: series of dashboard 12239, of whole GPUs and of a MIG instance."""
    scene.install("--set", "agent.families={native,dcgm}")
    try:
        owners = scene.owners_by_device()
        assert owners[WHOLE]
        assert owners[MIG]

        def found() -> bool:
            text = scene.metrics()
            return all(
                {
                    (row["namespace"], row["pod"], row["container"])
                    for row in label_sets(text, name)
                    if "pod" in row and ("GPU_I_ID" in row) == (resource == MIG)
                }
                == owners[resource]
                for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED")
                for resource in (WHOLE, MIG)
            )

        wait_for(found, "pods on DCGM_FI_*", lambda: f"{owners}\n{dcgm_lines(scene)}")
        text = scene.metrics()
        assert "\nnode_" not in text, "the node exporter has these"
    finally:
        scene.install()


def dcgm_lines(scene: Scene) -> str:
    return "\n".join(line for line in scene.metrics().splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP"))


def test_the_pod_cannot_read_logs_and_no_folder_of_the_kubelet_was_made(scene: Scene) -> None:
    target = f"ds/{RELEASE}-gpuscope-agent"
    script = (
        "import pathlib; links = list(pathlib.Path('/var/log/containers').iterdir()); "
        "print(len(links), [link for link in links if link.exists()], pathlib.Path('/var/log/pods').exists())"
    )
    said = scene.lab.kubectl("exec", "-n", NAMESPACE, target, "--", "python3", "-c", script).split(maxsplit=1)
    assert int(said[0]) > 0
    assert said[1].strip() == "[] False", "a link of a mounted folder leads to a log"
    assert not Path("/var/log/pods").exists(), "made on the node: this kubelet's logs are elsewhere"


def test_the_agent_stays_within_its_requests(scene: Scene) -> None:
    """50m and 64Mi, while it is scraped every second or more often."""
    samples: list[tuple[float, float, float]] = []

    def measured() -> bool:
        scene.metrics()
        text = scene.lab.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics/resource")
        agent = [line.split() for line in text.splitlines() if 'container="agent"' in line]
        cpu = next(words for words in agent if words[0].startswith("container_cpu_usage_seconds_total"))
        memory = next(words for words in agent if words[0].startswith("container_memory_working_set_bytes"))
        sample = (int(cpu[2]) / 1000, float(cpu[1]), float(memory[1]) / MIB)
        if sample not in samples:
            samples.append(sample)
        return samples[-1][0] - samples[0][0] >= 20

    wait_for(measured, "measurements of the kubelet")
    cpu = 1000 * (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
    memory = max(sample[2] for sample in samples)
    print(f"agent: {cpu:.0f}m CPU, {memory:.0f} MiB")
    assert memory <= 64
    assert cpu <= 50


def test_the_pod_is_not_privileged_and_helm_test_passes(scene: Scene) -> None:
    pod = scene.agent_pod()
    context = pod["spec"]["containers"][0]["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not context.get("privileged")
    assert not context["allowPrivilegeEscalation"]
    assert pod["spec"]["hostPID"]
    scene.helm_test()


def test_the_doctor_in_the_pod_finds_no_problem_with_kubernetes(scene: Scene) -> None:
    said = scene.lab.kubectl(
        "exec", "-n", NAMESPACE, f"ds/{RELEASE}-gpuscope-agent", "--", "gpuscope", "doctor", check=False
    )
    assert f"the kubelet lists the allocated GPUs: {len(scene.pods())} devices" in said, said
    assert "every process in a pod has its pod's name" in said, said


def test_no_folder_is_created_for_a_kubelet_without_pods_api(scene: Scene) -> None:
    """Kubernetes 1.36 has it only with a feature gate; the agent has nothing to warn about."""
    assert not (scene.lab.kubelet_folder / "pods-api").exists()
    log = scene.lab.kubectl("logs", "-n", NAMESPACE, f"ds/{RELEASE}-gpuscope-agent")
    assert [line for line in log.splitlines() if "pods-api" in line] == []


def test_pod_labels_come_from_the_kubelet_s_pods_api(scene: Scene) -> None:
    """From the real one: no other source of this agent has labels."""
    scene.lab.restart_kubelet(PodsAPI=True)
    try:
        scene.install("--set", "kubelet.podsApi=true", "--set-json", 'agent.exportedPodLabels=["team"]')
        scene.start_pod("labelled", WHOLE, team="vision")

        def found() -> list[dict[str, str]]:
            scene.run_on_gpus()
            rows = label_sets(scene.metrics(), "gpuscope_pod_labels")
            return [row for row in rows if row["pod"] == "labelled" and row.get("label_team") == "vision"]

        wait_for(found, "the pod's label", lambda: scene.metrics()[:3000])
    finally:
        scene.lab.kubectl("delete", "pod", "labelled", "-n", "ml", "--wait", check=False)
        scene.install()
        scene.lab.restart_kubelet()


def test_nvidia_s_runtime_class_gives_the_driver(scene: Scene) -> None:
    """The chart's way without mounts: a RuntimeClass, here with a stand-in for NVIDIA's runtime."""
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    scene.lab.apply(runtime | {"handler": "nvidia"})
    scene.install(
        "--set", "driver.access=runtime", "--set", "driver.runtimeClassName=nvidia",
        "--set-json", "agent.extraEnv=[]",
    )  # fmt: skip
    pod = scene.agent_pod()
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert "driver-library" not in {volume["name"] for volume in pod["spec"]["volumes"]}
    gpus = [row for row in label_sets(scene.metrics(), "gpuscope_gpu_info") if row["uuid"].startswith("GPU-")]
    assert {row["uuid"] for row in gpus} == {card.uuid for card in scene.driver.cards}
